"""One optimizer update of the policy: learning rate, gradient of the loss, step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.algorithms.loss_spec import LossSpec
from strop.protocols import TrainingEngine
from strop.run.optimize.lr_schedule import LrSchedule
from strop.types import GlobalCounts, TrainingBatch


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
