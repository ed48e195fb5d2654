"""An algorithm as an object: the groups that a step trains on, its advantages, and its loss, from its section."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch

from strop.algorithms.group_choice import group_indices
from strop.algorithms.losses.policy_objective import PolicyObjective
from strop.algorithms.reference_point import ReferencePoint
from strop.algorithms.rollout_batch import RolloutBatch
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.policy_gradient import BaseAlgorithmConfig
from strop.protocols import LossFn, TrainingEngine
from strop.types import ExperienceGroup

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
