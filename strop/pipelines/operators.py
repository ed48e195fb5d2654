"""Experience operators: filters, reward shaping, comparisons within a group, relabelling, and a language model's
judgment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from pathlib import Path
from statistics import pstdev, stdev
from typing import Protocol, runtime_checkable

from strop.config.schema.buffer import LlmQualityConfig, RewardTermConfig
from strop.config.schema.task_pipeline import EndpointModelConfig, InvalidRepliesConfig, ReplyConfig
from strop.data.images.messages import content_text
from strop.errors import RolloutError
from strop.pipelines.tasks.llm_operators import (
    SCORE_PATTERN,
    SCORE_PROMPTS,
    LanguageModel,
    scaled_score,
    usable_replies,
)
from strop.pipelines.tasks.operator import Say
from strop.pipelines.tasks.templates import RowTemplate
from strop.reward_comparison import exceeds, reaches
from strop.rewards.judges.chat_client import JudgeCache
from strop.seeds import derive_seed
from strop.types import Rollout, RolloutGroup, Task

_DIVERSITY = "diversity"
"""Name of the statistic in a rollout's `info`."""


class ExperienceOperator(Protocol):
    """Change of one scored group between scoring and the buffer.

    It must not depend on other groups or on time, so that an interrupted run repeats it.
    """

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        """The group to train on; None to remove it. Failed rollouts have the reward None."""


@runtime_checkable
class GroupsOperator(Protocol):
    """Operator that handles several groups at once, to ask a model or people about them at the same time.

    A group's result must not depend on the others.
    """

    def process_groups(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup | None]:
        """The result of each group."""


@runtime_checkable
class CountingOperator(Protocol):
    """Operator with metrics of its own."""

    def take_counts(self) -> dict[str, float]:
        """Counts since the last call, by name."""


@dataclass(frozen=True, slots=True)
class RewardFilter:
    """Keeps rollouts with a reward of at least `min_reward`."""

    min_reward: float

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        kept = tuple(r for r in group.rollouts if r.reward is not None and reaches(r.reward, self.min_reward))
        return replace(group, rollouts=kept) if kept else None


@dataclass(frozen=True, slots=True)
class RewardStdFilter:
    """Removes groups with a standard deviation of the rewards up to `threshold`."""

    threshold: float
    is_sample: bool
    """Whether the variance is divided by the number of rewards minus 1."""

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        rewards = [rollout.reward for rollout in group.rollouts if rollout.reward is not None]
        if len(rewards) < 2:
            return None
        deviation = stdev(rewards) if self.is_sample else pstdev(rewards)
        return group if exceeds(deviation, self.threshold) else None


@dataclass(frozen=True, slots=True)
class CorrectnessFilter:
    """Removes groups in which all rollouts are correct, or none is: the condition of DAPO's dynamic sampling (arXiv
    2503.14476)."""

    metric: str | None
    threshold: float
    """Value above which a rollout is correct."""

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        scores = [
            self._score(rollout, group.task) for rollout in group.rollouts if rollout.reward is not None
        ]
        correct = sum(bool(exceeds(score, self.threshold)) for score in scores)
        return group if 0 < correct < len(scores) else None

    def _score(self, rollout: Rollout, task: Task) -> float:
        assert rollout.reward is not None
        if self.metric is None:
            return rollout.reward
        stat = _statistic(rollout, task, self.metric)
        if stat is not None:
            return stat
        suffix = f"/{self.metric}"
        parts = (value for name, value in rollout.reward_parts.items() if name.endswith(suffix))
        return next(parts, rollout.reward)


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """Changes each reward by terms, in order.

    A workflow's rewards of turns are scaled, or shifted by equal amounts, so that their sum is the new reward.
    """

    terms: Sequence[RewardTermConfig]

    def __call__(self, group: RolloutGroup) -> RolloutGroup:
        return replace(group, rollouts=tuple(self._shaped(rollout, group.task) for rollout in group.rollouts))

    def _shaped(self, rollout: Rollout, task: Task) -> Rollout:
        if rollout.reward is None:
            return rollout
        reward, turns = rollout.reward, rollout.turn_rewards
        for term in self.terms:
            stat = _statistic(rollout, task, term.stat)
            if stat is None:
                continue
            factor, shift = _change(term, stat)
            reward = factor * reward + shift
            if turns:
                turns = tuple(factor * each + shift / len(turns) for each in turns)
        if not math.isfinite(reward):
            raise RolloutError(
                f"buffer.pipeline: reward_shaping turns the reward {rollout.reward} of rollout {rollout.id} into "
                f"{reward}; check the weights and the statistics {', '.join(term.stat for term in self.terms)}."
            )
        return replace(rollout, reward=reward, turn_rewards=turns)


def _statistic(rollout: Rollout, task: Task, name: str) -> float | None:
    """The first number of this name; None if there is none."""
    for values in (rollout.info, rollout.reward_parts, task.extra):
        value = values.get(name)
        if isinstance(value, Real):
            return float(value)
    return None


def _change(term: RewardTermConfig, stat: float) -> tuple[float, float]:
    """Factor and summand of a reward."""
    value = term.weight * stat
    match term.operation:
        case "add":
            return 1.0, value
        case "subtract":
            return 1.0, -value
        case "multiply":
            return value, 0.0
        case "divide":
            return (1.0 / value if value else 1.0), 0.0


@dataclass(frozen=True, slots=True)
class DiversityReward:
    """Adds the mean dissimilarity of a response to the others of its group, `weight` times.

    The similarity of two responses is the Jaccard similarity of their sets of word n-grams.
    """

    weight: float
    ngram_words: int

    def __call__(self, group: RolloutGroup) -> RolloutGroup:
        grams = {r.index: self._grams(r.text) for r in group.rollouts if r.reward is not None}
        if len(grams) < 2:
            return group
        rollouts = []
        for rollout in group.rollouts:
            reward = rollout.reward
            if reward is None:
                rollouts.append(rollout)
                continue
            value = _dissimilarity(rollout.index, grams)
            counted = replace(rollout, info={**rollout.info, _DIVERSITY: value})
            rollouts.append(with_reward(counted, reward + self.weight * value))
        return replace(group, rollouts=tuple(rollouts))

    def _grams(self, text: str) -> frozenset[tuple[str, ...]]:
        """The n-grams of a text; a shorter text is one n-gram."""
        words = text.lower().split()
        last = max(len(words) - self.ngram_words, 0)
        return frozenset(tuple(words[start : start + self.ngram_words]) for start in range(last + 1))


@dataclass(frozen=True, slots=True)
class LengthReward:
    """Adds a reward for a short response in comparison with the group, `weight` times (arXiv 2501.12599, 2.3.3).

    It falls from 0.5 for the shortest response to -0.5 for the longest; a wrong response gets its negative part.
    """

    weight: float
    correct_reward: float

    def __call__(self, group: RolloutGroup) -> RolloutGroup:
        lengths = {
            r.index: sum(len(turn.completion_ids) for turn in r.turns)
            for r in group.rollouts
            if r.reward is not None
        }
        if len(set(lengths.values())) < 2:
            return group
        shortest, longest = min(lengths.values()), max(lengths.values())

        def shaped(rollout: Rollout) -> Rollout:
            if rollout.reward is None:
                return rollout
            value = 0.5 - (lengths[rollout.index] - shortest) / (longest - shortest)
            if not reaches(rollout.reward, self.correct_reward):
                value = min(value, 0.0)
            return with_reward(rollout, rollout.reward + self.weight * value)

        return replace(group, rollouts=tuple(map(shaped, group.rollouts)))


@dataclass(frozen=True, slots=True)
class Relabel:
    """Replaces rewards of at least `threshold` by `above`, and others by `below`."""

    threshold: float
    above: float
    below: float

    def __call__(self, group: RolloutGroup) -> RolloutGroup:
        def relabelled(rollout: Rollout) -> Rollout:
            if rollout.reward is None:
                return rollout
            is_above = reaches(rollout.reward, self.threshold)
            return with_reward(rollout, self.above if is_above else self.below)

        return replace(group, rollouts=tuple(map(relabelled, group.rollouts)))


def with_reward(rollout: Rollout, reward: float) -> Rollout:
    """The rollout with this reward; rewards of turns are shifted by equal amounts, so that it is their sum."""
    assert rollout.reward is not None
    turns = rollout.turn_rewards
    if turns:
        shift = (reward - rollout.reward) / len(turns)
        turns = tuple(each + shift for each in turns)
    return replace(rollout, reward=reward, turn_rewards=turns)


def _dissimilarity(index: int, grams: Mapping[int, frozenset[tuple[str, ...]]]) -> float:
    own = grams[index]
    similar = [len(own & other) / len(own | other) for key, other in grams.items() if key != index]
    return 1 - sum(similar) / len(similar)


class ReplySampler(Protocol):
    """Samples replies with the run's inference engine."""

    def __call__(
        self, prompts: Sequence[str], section: ReplyConfig, seeds: Sequence[int]
    ) -> list[str | None]:
        """The reply to each prompt, with the weights that sampled last; None for a prompt that is too long."""


@dataclass(frozen=True, slots=True)
class ExperienceServices:
    """Services of a run for experience operators."""

    replies: Path
    """Folder for the cached replies of language models."""
    annotations: Path
    """Folder of the queue of questions to people."""
    check: Callable[[], None]
    """Raises `Interrupted` if a stop was requested."""
    sample_replies: ReplySampler


def prompt_text(task: Task) -> str:
    """The text of a task's messages."""
    return "\n".join(str(content_text(message["content"])) for message in task.messages)


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
