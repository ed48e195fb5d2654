"""An algorithm as an object: the groups that a step trains on, its advantages, and its loss, from its section. Besides
it stand what its estimators get, and the choices of groups that several algorithms share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Generic, TypeVar, assert_never

import numpy as np
import torch

from strop.algorithms.losses.policy_objective import PolicyObjective
from strop.algorithms.reference_point import ReferencePoint
from strop.config.schema.algorithm import RewardResamplingConfig, RolloutAlgorithmConfig
from strop.config.schema.policy_gradient import BaseAlgorithmConfig
from strop.protocols import LossFn, TrainingEngine
from strop.reward_comparison import are_equal, exceeds, reaches
from strop.types import ExperienceGroup


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """N scored rollouts with K targets in all; targets are concatenated in the order of the rollouts.

    A rollout counts once, however many experiences its turns became: its targets are those of all of them.
    Raises ValueError where shapes differ or a number is NaN or infinite.
    """

    rewards: torch.Tensor
    """[N] float32"""
    group: torch.Tensor
    """[N] int64: group of each rollout; equal numbers are rollouts of one task."""
    tokens: torch.Tensor
    """[N] int64: number of targets of each rollout, at least 1."""
    kl_penalties: torch.Tensor | None = None
    """[K] float32: KL penalty of each target, subtracted from the reward."""
    baselines: torch.Tensor | None = None
    """[N] float32: reward of the task's greedy response."""
    reward_parts: torch.Tensor | None = None
    """[N, P] float32: the parts of the reward that the algorithm names; NaN for a rollout without the part."""
    gradient_norms: torch.Tensor | None = None
    """[K] float32: expected squared norm of the gradient of each target's log-prob, up to a constant."""
    values: torch.Tensor | None = None
    """[K] float32: return that a critic predicts before each target."""
    process_rewards: torch.Tensor | None = None
    """[K] float32: reward of each target by a process reward model."""
    intermediate_rewards: torch.Tensor | None = None
    """[K] float32: part of the reward that was earned before the rollout's end, at the target that earned it."""

    turns: torch.Tensor | None = None
    """[K] int64: number of each target's turn among the turns of the step, from 0."""
    turn_states: torch.Tensor | None = None
    """[M] int64: state of the environment before each turn; equal numbers are equal states."""
    sequences: torch.Tensor | None = None
    """[N] int64: number of training sequences of each rollout."""

    def __post_init__(self) -> None:
        for name in ("group", "tokens", "baselines", "sequences"):
            value = getattr(self, name)
            if value is not None and value.shape != self.rewards.shape:
                raise ValueError(
                    f"{name} {tuple(value.shape)} and rewards {tuple(self.rewards.shape)} differ"
                )
        if self.rewards.dim() != 1 or bool((self.tokens < 1).any()):
            raise ValueError("rewards must be [N], and each rollout must have at least one target")
        for name in ("kl_penalties", "gradient_norms", "values", "process_rewards", "intermediate_rewards"):
            value = getattr(self, name)
            if value is not None and value.shape != (self.num_targets,):
                raise ValueError(f"{name} {tuple(value.shape)} must be [{self.num_targets}]")
        if self.turns is not None and self.turns.shape != (self.num_targets,):
            raise ValueError(f"turns {tuple(self.turns.shape)} must be [{self.num_targets}]")
        if self.reward_parts is not None and len(self.reward_parts) != len(self.rewards):
            raise ValueError(
                f"reward_parts {tuple(self.reward_parts.shape)} must have {len(self.rewards)} rows"
            )
        for name in (
            "rewards",
            "kl_penalties",
            "baselines",
            "gradient_norms",
            "process_rewards",
            "intermediate_rewards",
        ):
            value = getattr(self, name)
            if value is not None and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} must be finite; leave failed rollouts out of the batch")
        if self.reward_parts is not None and bool(self.reward_parts.isinf().any()):
            raise ValueError("reward_parts must be finite, or NaN for a part that a rollout does not have")

    @property
    def num_targets(self) -> int:
        """K"""
        return int(self.tokens.sum())

    def penalized_rewards(self) -> torch.Tensor:
        """[N] float64: each rollout's reward minus all its penalties."""
        scores = self.rewards.float().double()
        if self.kl_penalties is None:
            return scores
        return scores.index_add(0, self._rollout(), self.kl_penalties.double(), alpha=-1)

    def token_rewards(self) -> torch.Tensor:
        """[K] float64: intermediate rewards at their targets and the rest of the reward at a rollout's last
        target, minus each target's penalty."""
        rewards = torch.zeros(self.num_targets, dtype=torch.float64, device=self.rewards.device)
        remaining = self.rewards.float().double()
        if self.intermediate_rewards is not None:
            rewards += self.intermediate_rewards.double()
            remaining = remaining.index_add(0, self._rollout(), self.intermediate_rewards.double(), alpha=-1)
        if self.kl_penalties is not None:
            rewards -= self.kl_penalties.double()
        return rewards.index_add(0, self.tokens.cumsum(0) - 1, remaining)

    def _rollout(self) -> torch.Tensor:
        """[K] int64: number of each target's rollout."""
        return self.expand_to_tokens(torch.arange(len(self.tokens), device=self.tokens.device))

    def expand_to_tokens(self, values: torch.Tensor) -> torch.Tensor:
        """[K] from [N]: each rollout's value, repeated for all its targets."""
        return values.repeat_interleave(self.tokens)


def has_reward_variance(rewards: Sequence[float]) -> bool:
    """Whether the rewards of a group differ, so that it has a gradient (DAPO, arXiv 2503.14476, equation 11).

    False for a group of one or none. (verl's DAPO keeps groups of one.)
    """
    return not are_equal(rewards)


def group_indices(groups: Sequence[ExperienceGroup]) -> list[list[int]]:
    """Indices of each group's experiences among those of all groups."""
    ends = np.cumsum([len(group.experiences) for group in groups])
    return [list(range(end - len(g.experiences), end)) for g, end in zip(groups, ends, strict=True)]


def varied_groups(groups: Sequence[ExperienceGroup], min_reward_std: float) -> list[list[int]]:
    """`group_indices` of the groups whose rewards have an unbiased standard deviation above `min_reward_std`; that of a
    single rollout is 0."""
    found = []
    for group, indices in zip(groups, group_indices(groups), strict=True):
        rewards = list({experience.index: experience.reward for experience in group.experiences}.values())
        if len(rewards) > 1 and exceeds(np.std(rewards, ddof=1), min_reward_std):
            found.append(indices)
    return found


def repeat_groups(groups: Sequence[list[int]], count: int, seed: int) -> list[list[int]]:
    """The groups, and draws from them with replacement up to `count` groups; none if there are none."""
    random = np.random.Generator(np.random.Philox(seed))
    missing = count - len(groups) if groups else 0
    return [*groups, *(groups[i] for i in random.integers(len(groups) or 1, size=missing))]


def resample_groups(
    groups: Sequence[ExperienceGroup], section: RewardResamplingConfig, seed: int
) -> list[list[int]]:
    """Indices of the experiences of as many rollouts as the groups have, drawn with replacement, in groups of the same
    numbers of rollouts."""
    experiences = [experience for group in groups for experience in group.experiences]
    keys = [(experience.group, experience.index) for experience in experiences]
    rollouts = [[i for i, _ in same] for _, same in groupby(enumerate(keys), key=lambda pair: pair[1])]
    weights = resampling_weights(torch.tensor([experiences[first].reward for first, *_ in rollouts]), section)
    random = np.random.Generator(np.random.Philox(seed))
    drawn = iter(random.choice(len(rollouts), size=len(rollouts), p=weights.numpy()))
    sizes = [len({experience.index for experience in group.experiences}) for group in groups]
    return [[i for _ in range(size) for i in rollouts[next(drawn)]] for size in sizes]


_LEAST = 1e-8
"""Added to each weight, so that rollouts can be drawn where all weights are 0."""


def resampling_weights(rewards: torch.Tensor, config: RewardResamplingConfig) -> torch.Tensor:
    """[N] float64 of [N]: probability with which each rollout is drawn, with replacement, in PF-PPO (Shen and Zhang,
    arXiv 2409.06957), with verl's weights before they are normalized:

    pow         |r|^power
    max_min     1 for the highest and the lowest reward of the step, 0 for the others
    max_random  0.4 for the highest reward of the step, 0.1 for the others
    """
    scores = rewards.double()
    highest = reaches(scores, float(scores.max()))
    match config.method:
        case "pow":
            weights = scores.abs().pow(config.power)
        case "max_min":
            weights = (highest | ~exceeds(scores, float(scores.min()))).double()
        case "max_random":
            weights = torch.where(highest, 0.4, 0.1).double()
        case _:
            assert_never(config.method)
    weights = weights + _LEAST
    return weights / weights.sum()


S = TypeVar("S", bound=BaseAlgorithmConfig)
R = TypeVar("R", bound=RolloutAlgorithmConfig)


class Algorithm(ABC, Generic[S]):
    """Formulas of an algorithm. What it needs of a run is answered by its section, which imports no torch."""

    def __init__(self, section: S) -> None:
        self.section = section

    def check(self) -> None:
        """Call a user's functions on a small example. Raises ConfigError for one that cannot be used."""

    @abstractmethod
    def loss(self, max_response_tokens: int) -> LossFn:
        """The loss. `max_response_tokens` is `data.max_response_tokens`, which some aggregations divide by."""

    def section_at(self, step: int) -> S:
        """The section with what its schedules give for a trainer step, counted from 1."""
        return self.section

    def reference_point(self, engine: TrainingEngine, max_tokens: int) -> ReferencePoint | None:
        """Reference point of labeled responses; None without labels. `max_tokens` is the limit of a sequence."""
        return None


@dataclass(frozen=True, slots=True)
class AdvantageEstimate:
    """Advantages of a step, and what a critic learns from."""

    advantages: torch.Tensor
    """[K]"""
    returns: torch.Tensor | None = None
    """[K] Targets of a critic; None for an algorithm without one."""


class RolloutAlgorithm(Algorithm[R]):
    """An algorithm that learns from sampled rollouts, by default from all groups and with the policy's objective."""

    def chosen_groups(self, groups: Sequence[ExperienceGroup], *, seed: int, step: int) -> list[list[int]]:
        """Indices of the experiences of each group that the step's updates train on."""
        return group_indices(groups)

    @abstractmethod
    def advantages(self, scored: RolloutBatch) -> torch.Tensor:
        """[N] of rollouts, or [K] of their targets."""

    def estimate(self, scored: RolloutBatch) -> AdvantageEstimate:
        """Advantages of all targets, in the order of `scored`, and returns; float32."""
        found = self.advantages(scored)
        if found.shape == scored.rewards.shape:
            found = scored.expand_to_tokens(found)
        return AdvantageEstimate(found.float())

    def loss(self, max_response_tokens: int) -> LossFn:
        return PolicyObjective(self.section, max_response_tokens)


def add_overlong_penalty(
    section: RolloutAlgorithmConfig, scored: RolloutBatch, max_response_tokens: int
) -> RolloutBatch:
    """The batch with the section's penalty for responses near `max_response_tokens` added to its rewards."""
    if section.overlong_penalty is None:
        return scored
    penalty = overlong_penalty(
        scored.tokens,
        max_response_tokens=max_response_tokens,
        buffer_tokens=section.overlong_penalty.buffer_tokens,
        factor=section.overlong_penalty.factor,
    )
    return replace(scored, rewards=scored.rewards + penalty)


def overlong_penalty(
    tokens: torch.Tensor, *, max_response_tokens: int, buffer_tokens: int, factor: float
) -> torch.Tensor:
    """[N] penalties at most 0: DAPO's soft overlong punishment (arXiv 2503.14476, equation 13).

        0                                               for tokens <= start
        -factor (tokens - start) / buffer_tokens        above, down to -factor at the limit

    with start = max_response_tokens - buffer_tokens.

    DAPO's factor is 1. A response of several turns that is longer than the limit loses `factor`.
    """
    over = tokens.double() - (max_response_tokens - buffer_tokens)
    return -factor * (over / buffer_tokens).clamp(0, 1)
