"""How long a run is, in steps and in updates, and when something is due."""

from __future__ import annotations

import math
from dataclasses import dataclass

from strop.config.schema import Run
from strop.config.schema.algorithm import Ppo
from strop.config.units import Amount
from strop.errors import ConfigError
from strop.run.folder import RunState


@dataclass(frozen=True, slots=True)
class Length:
    """A run's length, once the number of training tasks is known."""

    steps: int
    """Steps in all."""
    updates: int
    """Optimizer updates of the policy in all; the last step may be cut short by it."""
    steps_per_epoch: int
    updates_per_step: int
    """Of a full step."""
    critic_steps: int = 0
    """Steps at the start in which a critic alone learns, without an update of the policy."""

    @property
    def learning_steps(self) -> int:
        """Steps in which the policy learns."""
        return self.steps - self.critic_steps

    def is_due(self, every: Amount | None, before: RunState, after: RunState) -> bool:
        """Whether a multiple of `every` was reached between two steps."""
        if every is None:
            return False
        match every.unit:
            case "steps":
                return _passed(before.step, after.step, every.count)
            case "updates":
                return _passed(before.updates, after.updates, every.count)
            case "epochs":
                per = self.steps_per_epoch
                return _passed(before.step, after.step, max(1, round(every.count * per)))
        raise ValueError(f"an interval cannot be in {every.unit}")

    def in_unit(self, amount: Amount, unit: str) -> int:
        """`10 steps`, `20 updates` or `5 %` of the policy's learning, as whole `steps` or `updates`."""
        total = self.learning_steps if unit == "steps" else self.updates
        if amount.unit == "%":
            return int(total * amount.count / 100)
        if amount.unit == unit:
            return int(amount.count)
        if unit == "updates":
            return int(amount.count) * self.updates_per_step
        return math.ceil(amount.count / self.updates_per_step)


def _passed(before: int, after: int, every: float) -> bool:
    return before // every < after // every


def length_of(run: Run, steps_per_epoch: int) -> Length:
    """The length that `trainer.duration` says. Raises `ConfigError` where that is no step at all."""
    trainer = run.trainer
    per_update = trainer.tasks_per_update or trainer.tasks_per_step
    updates_per_step = trainer.tasks_per_step // per_update * trainer.passes
    critic_steps = run.algorithm.critic.warmup_steps if isinstance(run.algorithm, Ppo) else 0
    count, unit = trainer.duration.count, trainer.duration.unit
    match unit:
        case "epochs":
            steps = round(count * steps_per_epoch)
        case "steps":
            steps = int(count)
        case _:
            steps = critic_steps + math.ceil(count / updates_per_step)
    if steps < 1:
        raise ConfigError(
            f"trainer.duration ({trainer.duration}) is less than one step: an epoch has {steps_per_epoch} "
            f"steps of {trainer.tasks_per_step} tasks. Write a longer duration, or fewer tasks_per_step."
        )
    if steps <= critic_steps:
        raise ConfigError(
            f"algorithm.critic.warmup_steps ({critic_steps}) leaves no step of {steps} in which the policy "
            "learns. Write fewer, or a longer trainer.duration."
        )
    warm_up = run.trainer.warm_up_steps
    if steps <= warm_up:
        raise ConfigError(
            f"trainer.sample.steps ({warm_up}) leaves no step of {steps} with rollouts. Write fewer, or a "
            "longer trainer.duration."
        )
    updates = int(count) if unit == "updates" else (steps - critic_steps) * updates_per_step
    return Length(steps, updates, steps_per_epoch, updates_per_step, critic_steps)
