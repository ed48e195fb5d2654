"""Result of a run, as `strop.train` returns it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strop.runs.folder import RunFolder
from strop.runs.metrics_file import merge_rows, read_metrics


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run."""

    folder: Path
    """Folder with everything that the run wrote."""
    model: Path | None
    """The trained model as a Hugging Face folder; None where this process wrote none (mode explore, for
    example)."""
    steps: int
    """Number of completed steps, earlier starts included."""
    model_step: int
    """Step of the model's weights: the last step, or under `checkpoint.best` the best one."""
    metrics: Mapping[str, float]
    """Metrics of the last step; `docs/metrics.md` defines them."""
    stopped: bool = False
    """Whether the run was stopped by `RunHandle.stop` or `RunControl.stop` before its end."""

    def history(self) -> list[dict[str, float]]:
        """Metrics of all steps, oldest first, for `pandas.DataFrame(result.history())`.

        One dict per row of `metrics.jsonl`: `step` and the metrics of that step, NaN where a value is not
        finite. Step 0 holds the evaluation before training. Where the explorer is a separate process, its
        metrics are merged into the rows.
        """
        folder = RunFolder(self.folder)
        rows = merge_rows(read_metrics(folder.explorer.metrics), read_metrics(folder.metrics))
        return [{name: math.nan if value is None else value for name, value in row.items()} for row in rows]
