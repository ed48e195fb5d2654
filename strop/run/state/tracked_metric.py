"""The evaluation metric that a schedule, `checkpoint.best` or `evaluate.stop_when` follows, and their decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strop.config.schema.data import EvalTasksetConfig
from strop.config.schema.run import Run
from strop.errors import CheckpointError, TrainingError
from strop.reward_comparison import exceeds, reaches
from strop.training.checkpoints import checkpoint


def tracked_metric(metric: str | None, tasksets: Sequence[EvalTasksetConfig]) -> str:
    """The configured metric, or else the first eval taskset's reward; empty where there is no taskset."""
    return metric or (f"eval/{tasksets[0].name}/reward" if tasksets else "")


def tracked_value(metrics: Mapping[str, float], name: str, key: str) -> float:
    """The metric's value.

    Raises TrainingError, which names the run file's `key`, where the evaluation lacks the metric.
    """
    if name not in metrics:
        found = ", ".join(sorted(metric for metric in metrics if metric.startswith("eval/")))
        raise TrainingError(
            f"{key} is {name}, but the evaluation has no such metric. It has {found or 'none'}; write one of "
            "these."
        )
    return metrics[name]


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best evaluation so far. Its step has a checkpoint."""

    step: int
    value: float
    metric: str
    mode: str


@dataclass(frozen=True, slots=True)
class BestCheckpointRule:
    """Metric and direction by which `checkpoint.best` selects."""

    metric: str
    mode: str
    """`max` or `min`."""

    @classmethod
    def of(cls, run: Run) -> BestCheckpointRule | None:
        """The run's rule; None where `checkpoint.best` is not set."""
        section = run.checkpoint.best
        return None if section is None else cls(tracked_metric(section.metric, run.data.eval), section.mode)

    def restore(self, best: BestCheckpoint | None, root: Path) -> BestCheckpoint | None:
        """A resumed run's best checkpoint so far.

        None where it was selected by another rule, or where its checkpoint is not in `root`, because the
        run continues another run's checkpoint.
        """
        if best is None or not checkpoint.folder_for_step(root, best.step).is_dir():
            return None
        return best if (best.metric, best.mode) == (self.metric, self.mode) else None

    def update(
        self, best: BestCheckpoint | None, step: int, metrics: Mapping[str, float]
    ) -> BestCheckpoint | None:
        """The best after one more evaluation. Of two values that are equal up to rounding the earlier one
        wins; NaN never wins.

        Raises TrainingError where the evaluation lacks the metric.
        """
        value = tracked_value(metrics, self.metric, "checkpoint.best.metric")
        sign = 1 if self.mode == "max" else -1
        if math.isnan(value) or (best is not None and not exceeds(sign * value, sign * best.value)):
            return best
        return BestCheckpoint(step, value, self.metric, self.mode)


def best_checkpoint_folder(best: BestCheckpoint, root: Path) -> Path:
    """The folder of the best checkpoint. Raises CheckpointError where it is missing or damaged."""
    folder = checkpoint.folder_for_step(root, best.step)
    try:
        checkpoint.verify(folder)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error} It is the best checkpoint of the run ({best.metric} {best.value:g}), whose weights the "
            "exported model should have. With `checkpoint.best: null` the same command exports the last "
            "step's weights."
        ) from error
    return folder


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
