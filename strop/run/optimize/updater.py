"""Interface of an updater, which turns one step's batch into optimizer updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from strop.run.state.run_state import RunState
from strop.types import Experience, ExperienceGroup, FloatArray, RolloutGroup


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Training data of one step."""

    groups: Sequence[ExperienceGroup]
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of how the batch was collected."""
    rollouts: Sequence[RolloutGroup] = ()
    """Scored rollouts that this process sampled for the step; empty for every other source."""
    update_sizes: Sequence[int] | None = None
    """Number of groups in each optimizer update, in order; None splits by `trainer.tasks_per_update`."""


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """Optimizer updates of one step."""

    updates: int
    """Number of optimizer updates of the policy."""
    metrics: dict[str, float]
    experiences: Sequence[Experience] = ()
    """Experiences of the step that have advantages."""
    advantages: Sequence[FloatArray] = ()
    """[L] of each of these experiences."""

    def rollout_advantages(self) -> dict[tuple[str, int], FloatArray]:
        """Advantages of the sampled tokens of each rollout, by group and index."""
        parts: dict[tuple[str, int], list[tuple[int, FloatArray]]] = {}
        for one, values in zip(self.experiences, self.advantages, strict=True):
            parts.setdefault((one.group, one.index), []).append((one.turn, values[one.loss_mask]))
        return {
            key: np.concatenate([values for _, values in sorted(found, key=lambda part: part[0])])
            for key, found in parts.items()
        }


class Updater(Protocol):
    """Turns one step's batch into optimizer updates."""

    def load_state(self, state: RunState) -> None:
        """Continue from a saved state."""
        ...

    def save_state(self, state: RunState) -> RunState:
        """The state with this updater's fields set to their current values."""
        ...

    def update(self, batch: StepBatch, *, step: int, updates_done: int) -> UpdateResult:
        """Train on the batch of one step.

        Args:
            batch: the step's data.
            step: number of the step, from 1.
            updates_done: number of optimizer updates before this step.
        """
        ...
