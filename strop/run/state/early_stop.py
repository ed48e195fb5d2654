"""Early end of a run by its evaluations, as `evaluate.stop_when` configures it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from strop.config.schema import Run
from strop.reward_comparison import exceeds, reaches
from strop.run.state.tracked_metric import tracked_metric, tracked_value


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """The evaluations so far, as far as an early end depends on them."""

    best: float | None = None
    """Best value; None before the first evaluation."""
    without_improvement: int = 0
    """Number of consecutive evaluations that did not improve on it."""


@dataclass(frozen=True, slots=True)
class EarlyStopRule:
    """Metric, direction and bounds of `evaluate.stop_when`."""

    metric: str
    mode: str
    """`max` or `min`."""
    value: float | None
    patience: int | None

    @classmethod
    def of(cls, run: Run) -> EarlyStopRule | None:
        """The run's rule; None where `evaluate.stop_when` is not set."""
        section = run.evaluate.stop_when
        if section is None:
            return None
        metric = tracked_metric(section.metric, run.data.eval)
        return cls(metric, section.mode, section.value, section.patience)

    def update(self, record: EvaluationRecord, metrics: Mapping[str, float]) -> EvaluationRecord:
        """The record after one more evaluation; NaN never improves. Raises TrainingError where it lacks the metric."""
        value = tracked_value(metrics, self.metric, "evaluate.stop_when.metric")
        is_better = record.best is None or exceeds(self._sign * value, self._sign * record.best)
        if math.isnan(value) or not is_better:
            return replace(record, without_improvement=record.without_improvement + 1)
        return EvaluationRecord(value)

    def reason(self, record: EvaluationRecord) -> str | None:
        """Why the run ends; None if it goes on."""
        best, value = record.best, self.value
        if best is not None and value is not None and reaches(self._sign * best, self._sign * value):
            return f"{self.metric} reached {best:g} (evaluate.stop_when.value {value:g})"
        if self.patience is not None and record.without_improvement >= self.patience:
            return (
                f"{self.metric} has not improved in {record.without_improvement} evaluations "
                f"(evaluate.stop_when.patience {self.patience})"
            )
        return None

    @property
    def _sign(self) -> int:
        return 1 if self.mode == "max" else -1
