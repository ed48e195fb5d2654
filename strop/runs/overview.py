"""Status of a run, read from its folder, and overview of the runs below a folder: step, rewards and age of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from strop.errors import RunFolderError
from strop.runs.folder import LOCK_FILE, RunFolder
from strop.runs.lock import current_holder
from strop.runs.metrics_file import last_metrics, merge_rows, read_metrics
from strop.runs.reader import RunData, read_run
from strop.runs.sessions import SESSIONS_FILE, read_sessions


@dataclass(frozen=True, slots=True)
class RunStatus:
    """State of a run, as far as its files tell."""

    outcome: str
    """Outcome of the last session (`finished`, `interrupted`, `failed`, `killed`), `not ended` while it has
    none, or `unknown` without a `run.json`."""
    step: int
    """Last step with metrics."""
    steps: int
    """Planned number of steps; the last step with metrics without a `run.json`."""
    message: str | None
    """Error message of the last session, if it did not finish."""


def run_status(data: RunData) -> RunStatus:
    """Determine the status of a run from its folder's contents."""
    step = max((int(row["step"] or 0) for row in data.rows), default=0)
    if not data.sessions:
        return RunStatus("unknown", step, step, None)
    last = data.sessions[-1]
    return RunStatus(last["outcome"] or "not ended", step, last["steps"], last["message"])


def last_session(folder: RunFolder) -> dict[str, Any] | None:
    """Return the last session of a run, or None if none was recorded."""
    sessions = read_sessions(folder.path)
    return sessions[-1] if sessions else None


def all_finished(folders: Sequence[RunFolder]) -> bool:
    """Whether the last session of every folder, one per process of the run, finished."""
    sessions = [last_session(folder) for folder in folders]
    return all(session is not None and session["outcome"] == "finished" for session in sessions)


def last_row(folder: RunFolder) -> dict[str, float]:
    """Return the metrics of the last step, merged over the processes of the run."""
    return last_metrics(merge_rows(read_metrics(folder.explorer.metrics), read_metrics(folder.metrics)))


_MAX_DEPTH = 4
"""Depth below the folder at which runs are looked for: `<output>/<project>/<name>` has three."""


@dataclass(frozen=True, slots=True)
class RunOverview:
    """One row of the list of runs."""

    path: Path
    status: str
    """`running`, the outcome of the last session, or `damaged`."""
    step: int
    steps: int
    """Planned number of steps."""
    reward: float | None
    """Mean training reward of the last step that has one."""
    held_out: Mapping[str, float]
    """Last reward of each eval taskset, by its name."""
    changed: datetime
    """Time of the last change of the metrics, in UTC."""


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run folders at or below a folder, in the order of their paths."""
    yield from _find(folder, _MAX_DEPTH)


def _find(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / SESSIONS_FILE).is_file():
        yield folder
    elif depth:
        try:
            entries = sorted(folder.iterdir())
        except FileNotFoundError:  # a run has renamed or deleted it since it was listed
            return
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith("."):
                yield from _find(entry, depth - 1)


def run_overview(path: Path) -> RunOverview:
    """Summarize one run; a run with damaged files has the status `damaged`."""
    try:
        return overview_of(read_run(path))
    except RunFolderError:
        return damaged_overview(path)


def damaged_overview(path: Path) -> RunOverview:
    """The overview of a run with damaged files."""
    return RunOverview(path, "damaged", 0, 0, None, {}, _changed(path))


def overview_of(data: RunData) -> RunOverview:
    """Summarize the contents of a run folder."""
    status = run_status(data)
    return RunOverview(
        data.folder.path,
        run_state(data),
        status.step,
        status.steps,
        last_value(data, "reward/mean"),
        held_out_rewards(data),
        _changed(data.folder.path),
    )


def run_state(data: RunData) -> str:
    """`running` while a process holds the run's lock, else the outcome of the last session."""
    outcome = run_status(data).outcome
    if outcome != "not ended":
        return outcome
    return "running" if current_holder(data.folder.path / LOCK_FILE) else "killed"


def last_value(data: RunData, name: str) -> float | None:
    """The last finite value of a metric; None if it has none."""
    values = data.series(name)[1]
    return values[-1] if values else None


def held_out_rewards(data: RunData) -> dict[str, float]:
    """The last reward of each eval taskset, by its name."""
    names = [name for name in data.names() if name.startswith("eval/") and name.endswith("/reward")]
    values = {name.removeprefix("eval/").removesuffix("/reward"): last_value(data, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _changed(path: Path) -> datetime:
    folder = RunFolder(path)
    times = [*map(_modified, (folder.metrics, path / SESSIONS_FILE))]
    return datetime.fromtimestamp(max(times) or _modified(path), UTC)


def _modified(path: Path) -> float:
    """Time of the last change in seconds since 1970; 0 for a file that does not exist."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
