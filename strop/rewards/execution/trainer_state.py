"""Progress of a training, for reward functions in TRL's form."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Progress of the weights that sampled a response: TRL's argument `trainer_state`, as far as transformers'
    `TrainerState` is about progress."""

    global_step: int = 0
    """Optimizer updates that the weights have had."""
    max_steps: int = 0
    """Optimizer updates of the whole training; 0 outside of a training."""
    epoch: float = 0.0
    """Epochs of the training tasks that the weights have been trained on."""
    num_train_epochs: float = 0.0
    """Epochs of the whole training; 0 outside of a training."""

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(field.name for field in fields(self))
        raise AttributeError(f"trainer_state has no {name!r} here; it has {known}")


@dataclass(frozen=True, slots=True)
class TrainingLength:
    """Length of a training, by which the version of a rollout's weights becomes a `TrainerState`."""

    updates: int
    """Optimizer updates of the policy."""
    updates_per_step: int
    steps: int
    steps_per_epoch: int
    untrained_steps: int = 0
    """Steps at the start without updates of the policy."""

    def state(self, version: int) -> TrainerState:
        """State of the weights of a version, which is a number of steps."""
        done = max(0, version - self.untrained_steps) * self.updates_per_step
        return TrainerState(
            min(done, self.updates),
            self.updates,
            version / self.steps_per_epoch,
            self.steps / self.steps_per_epoch,
        )
