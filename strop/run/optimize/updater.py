"""Interface of an updater, which turns one step's batch into optimizer updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from strop.run.state.run_state import RunState
from strop.types import ExperienceGroup, RolloutGroup


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
