"""Length of a run in steps and updates, and when an interval is due."""

from __future__ import annotations

import math
from dataclasses import dataclass

from strop.config.schema.run import Run
from strop.config.units import Amount, Rounding
from strop.errors import ConfigError
from strop.run.state.run_state import RunState


@dataclass(frozen=True, slots=True)
class Horizon:
    """Length of a run, derived from `trainer.duration`, `trainer.stop_after` and the number of training tasks."""

    steps: int
    """Number of the run's last step."""
    updates: int
    """Number of the policy's optimizer updates in `trainer.duration`; the limit may cut the last step short."""
    steps_per_epoch: int
    updates_per_step: int
    """Number of updates in a full step."""
    critic_steps: int = 0
    """Number of steps at the start that train only the critic and do no update of the policy."""
    steps_after_end: int = 0
    """Number of steps of `trainer.duration` that `trainer.stop_after` leaves out."""

    @property
    def scheduled_steps(self) -> int:
        """Number of steps in `trainer.duration`, which schedules span."""
        return self.steps + self.steps_after_end

    @property
    def learning_steps(self) -> int:
        """Number of scheduled steps that train the policy."""
        return self.scheduled_steps - self.critic_steps

    def is_due(self, every: Amount | None, before: RunState, after: RunState) -> bool:
        """Whether a multiple of `every` lies between two states; never for None."""
        if every is None:
            return False
        match every.unit:
            case "steps":
                return _crosses_multiple(before.step, after.step, every.count)
            case "updates":
                return _crosses_multiple(before.updates, after.updates, every.count)
            case "epochs":
                interval = max(1, round(every.count * self.steps_per_epoch))
                return _crosses_multiple(before.step, after.step, interval)
        raise ValueError(f"an interval cannot be in {every.unit}")

    def in_unit(self, amount: Amount, unit: str, rounding: Rounding = "down") -> int:
        """`10 steps`, `20 updates` or `5 %` of the policy's training, as a number of `steps` or `updates`.

        `up` rounds the product of floating-point numbers, as transformers' `get_warmup_steps` does: 7 % of 100 are 8.
        """
        total = self.learning_steps if unit == "steps" else self.updates
        if amount.unit == "%" and rounding == "up":
            return math.ceil(total * (amount.count / 100))
        if amount.unit == "%":
            return int(total * amount.count / 100)
        if amount.unit == unit:
            return int(amount.count)
        if unit == "updates":
            return int(amount.count) * self.updates_per_step
        return math.ceil(amount.count / self.updates_per_step)


def _crosses_multiple(before: int, after: int, every: float) -> bool:
    return before // every < after // every


def compute_horizon(run: Run, steps_per_epoch: int) -> Horizon:
    """The length that `trainer.duration` and `trainer.stop_after` set. Raises `ConfigError` where it is less than one
    step."""
    trainer = run.trainer
    per_update = trainer.tasks_per_update or trainer.tasks_per_step
    updates_per_step = trainer.tasks_per_step // per_update * trainer.epochs_per_step
    critic_steps = run.algorithm.critic_warmup_steps
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
            f"algorithm.critic.warmup_steps ({critic_steps}) leaves none of the {steps} steps to train the "
            "policy. Write fewer, or a longer trainer.duration."
        )
    warmup_steps = trainer.warmup_steps
    if steps <= warmup_steps:
        raise ConfigError(
            f"trainer.batch_selection.steps ({warmup_steps}) leaves none of the {steps} steps for rollouts. "
            "Write fewer, or a longer trainer.duration."
        )
    updates = int(count) if unit == "updates" else (steps - critic_steps) * updates_per_step
    end = min(steps, _last_step(trainer.stop_after, steps, steps_per_epoch))
    return Horizon(end, updates, steps_per_epoch, updates_per_step, critic_steps, steps - end)


def _last_step(limit: Amount | None, steps: int, steps_per_epoch: int) -> int:
    """The last step under `trainer.stop_after`, at least 1."""
    if limit is None:
        return steps
    return max(1, round(limit.count * steps_per_epoch) if limit.unit == "epochs" else int(limit.count))
