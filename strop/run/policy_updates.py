"""Updates of the policy: batches through the training engine, whatever they are learned by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strop.algorithms import table
from strop.config.schema import Run
from strop.protocols import TrainingEngine
from strop.run.passes import Passes, counts_of
from strop.run.rates import Rates
from strop.types import Experience, Floats


class PolicyUpdates(Passes):
    """Drives the training engine with the algorithm's loss."""

    def __init__(self, engine: TrainingEngine, run: Run, rates: Rates) -> None:
        super().__init__(engine, run)
        self.rates = rates
        """Of its updates; an evaluation may change them."""
        self._entropy = table.measures_entropy(run.algorithm)
        self._divergence = table.measures_divergence(run.algorithm)

    def update(
        self,
        experiences: Sequence[Experience],
        advantages: Sequence[float | Floats],
        old: Sequence[Floats] | None,
        reference: Sequence[Floats] | None,
        *,
        step: int,
        update: int,
    ) -> dict[str, float]:
        """One optimizer update; returns its metrics. All but `step` and `update` go by experience.

        `step` counts from 1, `update` from 0. Raises TrainingError where loss or gradient is not finite.
        """
        metrics = {"lr": self.rates.lr(step, update)}
        self._engine.set_lr(metrics["lr"])
        weight_decay = self.rates.weight_decay(step, update)
        if weight_decay is not None:
            self._engine.set_weight_decay(weight_decay)
        metrics |= self._engine.forward_backward(
            self.pack(experiences, advantages, old, reference),
            self._loss_fn,
            counts_of(experiences),
            entropy=self._entropy,
            divergence=self._divergence,
        )
        metrics["grad_norm"] = self._engine.step()
        return metrics


def means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean over updates of each metric."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
