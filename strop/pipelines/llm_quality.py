"""Experience operator that adds a language model's judgment of each response to its reward."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from strop.config.schema.buffer import LlmQualityConfig
from strop.config.schema.task_pipeline import EndpointModelConfig, InvalidRepliesConfig
from strop.errors import RolloutError
from strop.pipelines.operators import ExperienceServices, prompt_text, with_reward
from strop.pipelines.tasks.llm_operators import (
    SCORE_PATTERN,
    SCORE_PROMPTS,
    LanguageModel,
    scaled_score,
    usable_replies,
)
from strop.pipelines.tasks.operator import Say
from strop.pipelines.tasks.templates import RowTemplate
from strop.rewards.judges.chat_client import JudgeCache
from strop.seeds import derive_seed
from strop.types import Rollout, RolloutGroup

_QUALITY = "llm_quality_score"
"""Name of the statistic in a rollout's `info`."""
_SCALE = (1.0, 5.0)


class LlmQuality:
    """Asks a language model for the quality of each response, and adds `weight` times the score to the reward."""

    def __init__(self, section: LlmQualityConfig, services: ExperienceServices, say: Say) -> None:
        """Raises ConfigError for an endpoint without an address."""
        self._section = section
        self._services = services
        self._prompt = RowTemplate(SCORE_PROMPTS["quality"], "prompt", ("fields",))
        self._pattern = re.compile(SCORE_PATTERN)
        self._seen = self._invalid = 0
        self._endpoint: LanguageModel | None = None
        if isinstance(section.model, EndpointModelConfig):
            cache = JudgeCache(services.replies)
            self._endpoint = LanguageModel(section.model, None, cache, say, "buffer.pipeline")

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        """The group with scored rollouts."""
        return self.process_groups([group])[0]

    def process_groups(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """The groups with scored rollouts; one without a usable reply keeps its reward.

        Raises RolloutError for too many of these, and DataError for a model that does not answer.
        """
        asked = [(group, r) for group in groups for r in group.rollouts if r.reward is not None]
        prompts = [self._prompt_for(group, rollout, row) for row, (group, rollout) in enumerate(asked)]
        found = self._scores(prompts, [rollout.id for _, rollout in asked])
        self._count(found, [group.task.id for group, _ in asked])
        scores = {(group.id, r.index): score for (group, r), score in zip(asked, found, strict=True)}
        return [
            replace(
                group,
                rollouts=tuple(self._scored(r, scores.get((group.id, r.index))) for r in group.rollouts),
            )
            for group in groups
        ]

    def _prompt_for(self, group: RolloutGroup, rollout: Rollout, row: int) -> str:
        fields = [("Question", prompt_text(group.task)), ("Response", rollout.text)]
        return self._prompt.render({"fields": fields}, row)

    def _scores(self, prompts: Sequence[str], names: Sequence[str]) -> list[float | None]:
        """A score for each prompt; None where no attempt gives a usable reply."""

        def parse(reply: str) -> float | None:
            return scaled_score(self._pattern, _SCALE, reply)

        attempts = self._section.attempts
        if self._endpoint is not None:
            return self._endpoint.usable(prompts, parse, InvalidRepliesConfig(attempts=attempts))
        return usable_replies(partial(self._sampled, prompts, names), len(prompts), parse, attempts)

    def _sampled(
        self, prompts: Sequence[str], names: Sequence[str], numbers: Sequence[int], attempt: int
    ) -> list[str | None]:
        """Replies of the rollouts' engine. The seed of each is a function of its rollout, so that a resumed run
        repeats it."""
        section = self._section.model
        if attempt:
            section = section.model_copy(update={"temperature": 1.0})
        seeds = [derive_seed(0, "llm_quality", names[number], attempt) for number in numbers]
        return self._services.sample_replies([prompts[number] for number in numbers], section, seeds)

    def _scored(self, rollout: Rollout, score: float | None) -> Rollout:
        if score is None or rollout.reward is None:
            return rollout
        counted = replace(rollout, info={**rollout.info, _QUALITY: score})
        return with_reward(counted, rollout.reward + self._section.weight * score)

    def _count(self, found: Sequence[float | None], tasks: Sequence[str]) -> None:
        self._seen += len(found)
        self._invalid += found.count(None)
        limit = self._section.max_invalid_fraction
        if self._invalid > max(limit * self._seen, 1):
            last = next(
                task for task, score in reversed(list(zip(tasks, found, strict=True))) if score is None
            )
            name = getattr(self._section.model, "model", "engine")
            long = (
                ""
                if self._endpoint
                else "or raise rollout.max_sequence_tokens where its prompts are longer, "
            )
            raise RolloutError(
                f"buffer.pipeline: llm_quality: the language model {name!r} gave no score for "
                f"{self._invalid} of {self._seen} responses (the last one to task {last!r}), more than "
                f"max_invalid_fraction {limit:g}. Take another model, {long}or raise max_invalid_fraction."
            )
