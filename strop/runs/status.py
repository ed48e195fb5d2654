"""Status of a run, read from its folder: outcome, steps done, and the last metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strop.runs.folder import RunFolder
from strop.runs.metrics_file import last_metrics, merge_rows, read_metrics
from strop.runs.reader import RunData
from strop.runs.sessions import read_sessions


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
