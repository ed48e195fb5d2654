"""Experience operator that adds a language model's judgment of each response to its reward."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from strop.config.schema.language_model import InvalidRepliesConfig
from strop.config.schema.pipeline import LlmQualityConfig
from strop.data.images.messages import content_text
from strop.errors import RolloutError
from strop.pipelines.group_shaping import with_reward
from strop.pipelines.tasks.language_model import LanguageModel
from strop.pipelines.tasks.llm_operators import scaled_score
from strop.pipelines.tasks.prompts import SCORE_PATTERN, SCORE_PROMPTS
from strop.pipelines.tasks.protocol import Say
from strop.pipelines.tasks.templates import RowTemplate
from strop.rewards.judges.judge_cache import JudgeCache
from strop.types import RolloutGroup

QUALITY = "llm_quality_score"
"""Name of the statistic in a rollout's `info`."""
_SCALE = (1.0, 5.0)


class LlmQuality:
    """Asks a language model for the quality of each response, and adds `weight` times the score to the reward."""

    def __init__(self, section: LlmQualityConfig, replies: Path, say: Say) -> None:
        """`replies` is the folder of the cache. Raises ConfigError for an endpoint without an address."""
        self._section = section
        self._model = LanguageModel(section.model, None, JudgeCache(replies), say, "buffer.pipeline")
        self._prompt = RowTemplate(SCORE_PROMPTS["quality"], "prompt", ("fields",))
        self._pattern = re.compile(SCORE_PATTERN)
        self._seen = self._invalid = 0

    def __call__(self, group: RolloutGroup) -> RolloutGroup:
        """The group with scored rollouts; one without a usable reply keeps its reward. Raises RolloutError for too many
        of these, and DataError for a model that does not answer."""
        scored = [rollout for rollout in group.rollouts if rollout.reward is not None]
        question = "\n".join(str(content_text(message["content"])) for message in group.task.messages)
        fields = [[("Question", question), ("Response", rollout.text)] for rollout in scored]
        prompts = [self._prompt.render({"fields": each}, number) for number, each in enumerate(fields)]
        invalid = InvalidRepliesConfig(attempts=self._section.attempts)
        found = self._model.usable(prompts, lambda reply: scaled_score(self._pattern, _SCALE, reply), invalid)
        self._count(found, group)
        scores = {rollout.index: score for rollout, score in zip(scored, found, strict=True)}
        rollouts = []
        for rollout in group.rollouts:
            score, reward = scores.get(rollout.index), rollout.reward
            if score is not None and reward is not None:
                rollout = replace(rollout, info={**rollout.info, QUALITY: score})
                rollout = with_reward(rollout, reward + self._section.weight * score)
            rollouts.append(rollout)
        return replace(group, rollouts=tuple(rollouts))

    def _count(self, found: list[float | None], group: RolloutGroup) -> None:
        self._seen += len(found)
        self._invalid += found.count(None)
        limit = self._section.max_invalid_fraction
        if self._invalid > max(limit * self._seen, 1):
            raise RolloutError(
                f"buffer.pipeline: llm_quality: the language model {self._section.model.model!r} gave no score for "
                f"{self._invalid} of {self._seen} responses (the last ones to task {group.task.id!r}), more than "
                f"max_invalid_fraction {limit:g}. Take another model, or raise max_invalid_fraction."
            )
