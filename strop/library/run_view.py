"""A run's folder, opened for reading: status, metrics, rollouts, configuration, checkpoints and model; and the live
line of a run in a notebook.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.load.loader import LoadedRun
from strop.errors import RunFolderError
from strop.runs.folder import RunFolder
from strop.runs.overview import held_out_rewards, last_value, run_state, run_status
from strop.runs.reader import RunData, read_run
from strop.runs.rollout_file import read_rollouts

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of a run, one row per step; `strop help metrics` defines the columns."""

    rows: list[dict[str, float]]
    """Rows, oldest first; NaN where a value is not finite. A row has the metrics of its step only."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, float]]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> list[float]:
        """Values of a metric at the steps that have it. Raises KeyError for one that no step has."""
        found = [row[name] for row in self.rows if name in row]
        if not found:
            raise KeyError(f"no step has the metric {name!r}; the metrics are {', '.join(self.names())}")
        return found

    def names(self) -> list[str]:
        """Names of all metrics."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with a row per step and a column per metric, indexed by step."""
        import pandas

        frame = pandas.DataFrame(self.rows)
        return frame.set_index("step") if "step" in frame else frame


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Recorded rollouts, read from their files as they are iterated."""

    files: list[Path]
    """Parquet files, one per recorded step, oldest first."""

    def __len__(self) -> int:
        """Number of recorded rollouts."""
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(file).num_rows for file in self.files)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rollouts as dicts: `step`, `task_id`, `prompt`, `text`, `reward`, `reward_parts`, `status` and others."""
        for file in self.files:
            yield from read_rollouts(file)

    def steps(self) -> list[int]:
        """Steps that are recorded."""
        return [int(file.stem.removeprefix("step-")) for file in self.files]

    def at_step(self, step: int) -> list[dict[str, Any]]:
        """Rollouts of a step; an empty list for one that is not recorded."""
        return [row for file in self.files if file.stem == f"step-{step:06d}" for row in read_rollouts(file)]

    def to_pandas(self) -> pd.DataFrame:
        """A data frame with a row per rollout; it reads all files."""
        import pandas

        return pandas.DataFrame(list(self))


class RunView:
    """A run's folder, which may still be written. Each attribute is read from the files when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Folder of the run."""
        self._data()

    @property
    def status(self) -> str:
        """`running`, or the outcome of the last session: `finished`, `interrupted`, `failed`, `killed`."""
        return run_state(self._data())

    @property
    def step(self) -> int:
        """Last step with metrics."""
        return run_status(self._data()).step

    @property
    def steps(self) -> int:
        """Planned number of steps."""
        return run_status(self._data()).steps

    @property
    def error(self) -> str | None:
        """Error message of the last session; None for one that did not fail."""
        return run_status(self._data()).message

    @property
    def configuration(self) -> dict[str, Any]:
        """All values of the run file, defaults included; secrets are redacted."""
        return self._data().configuration()

    @property
    def metrics(self) -> Metrics:
        """Metrics of all steps."""
        rows = self._data().rows
        return Metrics(
            [{name: math.nan if value is None else value for name, value in row.items()} for row in rows]
        )

    @property
    def rollouts(self) -> Rollouts:
        """Recorded rollouts of training."""
        return Rollouts(self._data().rollout_files())

    @property
    def evaluations(self) -> dict[str, Rollouts]:
        """Recorded rollouts of each eval taskset, by its name."""
        return {name: Rollouts(files) for name, files in self._data().eval_files().items()}

    @property
    def checkpoints(self) -> dict[int, Path]:
        """Folder of each checkpoint, by its step."""
        found = sorted(RunFolder(self.folder).checkpoints.glob("step-*"))
        return {int(path.name.removeprefix("step-")): path for path in found if path.name[5:].isdigit()}

    @property
    def model(self) -> Path | None:
        """The trained model as a Hugging Face folder; None where the run has not written it yet."""
        path = RunFolder(self.folder).model
        return path if path.is_dir() else None

    def __repr__(self) -> str:
        return f"strop.RunView({str(self.folder)!r}, {self.status}, step {self.step} of {self.steps})"

    def _repr_html_(self) -> str:
        """A table, as notebooks show it."""
        data = self._data()
        rows = {
            "folder": str(self.folder),
            "status": self.status,
            "step": f"{self.step} of {self.steps}",
            "reward/mean": _number(last_value(data, "reward/mean")),
            **{f"eval/{name}/reward": _number(value) for name, value in held_out_rewards(data).items()},
            "model": str(self.model or "not written yet"),
        }
        cells = "".join(
            f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in rows.items()
        )
        return f"<table>{cells}</table>"

    def _data(self) -> RunData:
        return read_run(self.folder)


def open_run(folder: str | Path) -> RunView:
    """Open a run's folder, of a run that is finished or not.

    Raises RunFolderError where the folder is no run's, or a file in it is damaged.
    """
    if not isinstance(folder, str | Path):
        raise RunFolderError(
            f"open_run takes the path of a run's folder, as text or pathlib.Path, and got {folder!r:.80}."
        )
    return RunView(Path(folder).expanduser())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


_SHOWN = ("reward/mean", "loss", "grad_norm", "response_tokens/mean")
"""Metrics of the line, where a step has them."""


def in_notebook() -> bool:
    """Whether this program is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def may_watch(loaded: LoadedRun) -> bool:
    """Whether the training loops of a run are in this process, so that callbacks are called."""
    return all(
        stage.run.mode in ("both", "train") and not stage.run.is_launched_in_roles for stage in loaded.runs
    )


class LiveLine:
    """Callback that shows the last step's metrics in one line below the cell, and replaces it with each step."""

    def __init__(self) -> None:
        self._handle: Any = None

    def on_step(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a step."""
        from IPython.display import HTML, display

        line = HTML(f"<code>{html.escape(step_line(metrics))}</code>")
        if self._handle is None:
            self._handle = display(line, display_id=True)
        else:
            self._handle.update(line)


def step_line(metrics: Mapping[str, float]) -> str:
    """A step and its most important metrics, as text."""
    shown = [f"{name} {metrics[name]:.4g}" for name in _SHOWN if metrics.get(name) is not None]
    return "  ".join([f"step {int(metrics.get('step', 0))}", *shown])
