"""Which step was the best, as `checkpoint.best` says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strop.config.schema import Run
from strop.errors import CheckpointError
from strop.run.measured import followed, measured
from strop.training import checkpoint


@dataclass(frozen=True, slots=True)
class BestStep:
    """The best evaluation so far. Its step has a checkpoint."""

    step: int
    value: float
    metric: str
    mode: str


def known_best(run: Run, best: BestStep | None, root: Path) -> BestStep | None:
    """What counts of it when a run starts again: None where `checkpoint.best` says nothing or something else
    now, and where the checkpoint is not among the run's own, for it goes on from another run's."""
    section = run.checkpoint.best
    if best is None or section is None or not checkpoint.folder_of(root, best.step).is_dir():
        return None
    return best if (best.metric, best.mode) == (followed(run, section.metric), section.mode) else None


def better(run: Run, best: BestStep | None, step: int, metrics: Mapping[str, float]) -> BestStep | None:
    """The best after one more evaluation: the earlier one where both are equal; NaN is never it.

    None where `checkpoint.best` says nothing. Raises TrainingError where the evaluation did not give its
    metric.
    """
    section = run.checkpoint.best
    if section is None:
        return None
    metric = followed(run, section.metric)
    value = measured(metrics, metric, "checkpoint.best.metric")
    sign = 1 if section.mode == "max" else -1
    if math.isnan(value) or (best is not None and sign * value <= sign * best.value):
        return best
    return BestStep(step, value, metric, section.mode)


def checkpoint_of(best: BestStep, root: Path) -> Path:
    """Its checkpoint. Raises CheckpointError where that is gone or damaged."""
    folder = checkpoint.folder_of(root, best.step)
    try:
        checkpoint.verify(folder)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error} It was the best of the run ({best.metric} {best.value:g}), whose model was to be "
            "left. With `checkpoint.best: null` the same command leaves the last step's."
        ) from error
    return folder
