"""Interface of updaters, which turn a step's batch into updates of the policy; one of these updates, with its learning
rate, weight decay and gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from strop.algorithms.registry import LossSpec
from strop.algorithms.schedules import PlateauState, lr_at, update_plateau, weight_decay_at
from strop.config.schema.data import EvalTasksetConfig
from strop.config.schema.optimizer import OptimizerConfig, ReduceOnPlateauScheduleConfig, ScheduleConfig
from strop.config.schema.trainer import TrainerConfig
from strop.protocols import TrainingEngine
from strop.run.state.horizon import Horizon
from strop.run.state.run_state import RunState
from strop.run.state.tracked_metric import tracked_metric, tracked_value
from strop.types import Experience, ExperienceGroup, FloatArray, GlobalCounts, RolloutGroup, TrainingBatch


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


class PolicyOptimizer:
    """Updates the policy on batches, at the schedule's learning rate and weight decay."""

    def __init__(self, engine: TrainingEngine, loss: LossSpec, lr_schedule: LrSchedule) -> None:
        self.engine = engine
        self._loss = loss
        self.lr_schedule = lr_schedule
        """Learning rate of the updates; an evaluation can change it."""

    def update(
        self, batch: TrainingBatch, *, step: int, update: int, counts: GlobalCounts | None = None
    ) -> dict[str, float]:
        """One update on a batch; returns its metrics.

        `step` counts from 1, `update` from 0; `counts` of None are those of the batch. Raises TrainingError where
        the loss or the gradient is not finite.
        """
        metrics = {"lr": self.lr_schedule.lr(step, update)}
        self.engine.set_lr(metrics["lr"])
        weight_decay = self.lr_schedule.weight_decay(step, update)
        if weight_decay is not None:
            self.engine.set_weight_decay(weight_decay)
        metrics |= self.engine.forward_backward(batch, self._loss.at_step(step), counts)
        metrics["grad_norm"] = self.engine.step()
        return metrics


def mean_metrics(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each metric over the updates that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}
