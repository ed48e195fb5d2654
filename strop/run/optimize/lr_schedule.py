"""Learning rate and weight decay of each optimizer update of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strop.algorithms.plateau import PlateauState, update_plateau
from strop.algorithms.schedules import lr_at, weight_decay_at
from strop.config.schema.data import EvalTasksetConfig
from strop.config.schema.optimizer import OptimizerConfig
from strop.config.schema.schedule import ReduceOnPlateauScheduleConfig, ScheduleConfig
from strop.config.schema.trainer import TrainerConfig
from strop.run.state.horizon import Horizon
from strop.run.state.tracked_metric import tracked_metric, tracked_value


class LrSchedule:
    """Learning rate and weight decay of the policy's updates.

    Both are functions of the update's position, times what `reduce_lr_on_plateau` derived from the
    evaluations so far.
    """

    def __init__(
        self, trainer: TrainerConfig, horizon: Horizon, tasksets: Sequence[EvalTasksetConfig]
    ) -> None:
        """`tasksets` is `data.eval`, whose first reward is the default metric of a plateau schedule."""
        self._trainer = trainer
        self._horizon = horizon
        self._tasksets = tasksets
        self.plateau: PlateauState | None = None
        """State of `reduce_lr_on_plateau`, saved in checkpoints; None for other schedules, and before the
        first evaluation."""

    def lr(self, step: int, update: int) -> float:
        """Learning rate of one update: `step` counts from 1, `update` from 0."""
        optimizer, schedule = self._trainer.optimizer, self._trainer.schedule
        lr = learning_rate(optimizer, schedule, self._horizon, step=step, update=update)
        return lr if self.plateau is None else lr * self.plateau.ratio

    def weight_decay(self, step: int, update: int) -> float | None:
        """Weight decay of one update; None where it is constant."""
        increase = self._trainer.weight_decay_increase
        if increase is None:
            return None
        position, total = schedule_position(self._trainer.schedule, self._horizon, step=step, update=update)
        return weight_decay_at(increase, self._trainer.optimizer.weight_decay, position, total)

    def observe_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Update the plateau state from an evaluation.

        Raises TrainingError where the evaluation lacks the schedule's metric.
        """
        schedule = self._trainer.schedule
        if not isinstance(schedule, ReduceOnPlateauScheduleConfig):
            return
        metric = tracked_metric(schedule.metric, self._tasksets)
        value = tracked_value(metrics, metric, "trainer.schedule.metric")
        self.plateau = update_plateau(schedule, self.plateau or PlateauState(), value)


def learning_rate(
    optimizer: OptimizerConfig, schedule: ScheduleConfig, horizon: Horizon, *, step: int, update: int
) -> float:
    """The scheduled learning rate of one update: `step` counts from 1, `update` from 0."""
    position, total = schedule_position(schedule, horizon, step=step, update=update)
    return lr_at(
        schedule,
        optimizer.lr,
        position,
        total,
        count=lambda amount, rounding: horizon.in_unit(amount, schedule.interval, rounding),
    )


def schedule_position(
    schedule: ScheduleConfig, horizon: Horizon, *, step: int, update: int
) -> tuple[int, int]:
    """Position of an update and length of the run, in the unit that the schedule counts (`interval`)."""
    if schedule.interval == "steps":
        return step - 1 - horizon.critic_steps, horizon.learning_steps
    return update, horizon.updates
