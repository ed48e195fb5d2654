"""Built-in experience operators: filters by reward or correctness, and reward shaping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from statistics import pstdev, stdev
from typing import Protocol, runtime_checkable

from strop.config.schema.buffer import RewardTermConfig
from strop.errors import RolloutError
from strop.reward_comparison import exceeds, reaches
from strop.types import Rollout, RolloutGroup, Task


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
