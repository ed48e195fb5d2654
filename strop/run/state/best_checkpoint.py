"""Selection of the best checkpoint, as `checkpoint.best` configures it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strop.config.schema import Run
from strop.errors import CheckpointError
from strop.reward_comparison import exceeds
from strop.run.state.tracked_metric import tracked_metric, tracked_value
from strop.training.checkpoints import checkpoint


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
