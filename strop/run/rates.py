"""The learning rate and the weight decay of the policy's updates, over a run."""

from __future__ import annotations

from collections.abc import Mapping

from strop.algorithms.plateau import Plateau, after_evaluation
from strop.algorithms.schedules import weight_decay_at
from strop.config.schema import Run
from strop.config.schema.schedule import ReduceOnPlateauSchedule
from strop.run.length import Length
from strop.run.measured import followed, measured
from strop.run.updates import learning_rate, position_of


class Rates:
    """Pure functions of the position, and what a plateau of the evaluations has made of them."""

    def __init__(self, run: Run, length: Length) -> None:
        self._trainer = run.trainer
        self._length = length
        self._run = run
        self.plateau: Plateau | None = None
        """What the schedule remembers, for the checkpoint; None where it needs no memory, or has none yet."""

    def lr(self, step: int, update: int) -> float:
        """The learning rate of one update: `step` counts from 1, `update` from 0."""
        optimizer, schedule = self._trainer.optimizer, self._trainer.schedule
        lr = learning_rate(optimizer, schedule, self._length, step=step, update=update)
        return lr if self.plateau is None else lr * self.plateau.ratio

    def weight_decay(self, step: int, update: int) -> float | None:
        """The same for the weight decay; None where it stays."""
        increase = self._trainer.weight_decay_increase
        if increase is None:
            return None
        position, total = position_of(self._trainer.schedule, self._length, step=step, update=update)
        return weight_decay_at(increase, self._trainer.optimizer.weight_decay, position, total)

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Learn what an evaluation gave. Raises TrainingError where the schedule's metric is not in it."""
        schedule = self._trainer.schedule
        if not isinstance(schedule, ReduceOnPlateauSchedule):
            return
        value = measured(metrics, followed(self._run, schedule.metric), "trainer.schedule.metric")
        self.plateau = after_evaluation(schedule, self.plateau or Plateau(), value)
