"""Sessions of a run in `run.json`: one for each start; a run that was interrupted and resumed has several."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from strop.errors import RunFolderError
from strop.workers.atomic_write import atomic_write

SESSIONS_FILE = "run.json"

SessionOutcome = Literal["finished", "interrupted", "failed", "killed"]
"""Outcome of a session. It is null while the session runs; the next session replaces null by `killed`."""


def begin_session(folder: Path, facts: Mapping[str, Any]) -> None:
    """Append a session. An earlier session without an outcome is marked as killed."""
    sessions = read_sessions(folder)
    for session in sessions:
        session["outcome"] = session["outcome"] or "killed"
    sessions.append({"started": _now(), "ended": None, "outcome": None, "message": None, **facts})
    _write(folder, sessions)


def end_session(folder: Path, outcome: SessionOutcome, message: str | None) -> None:
    """Record the outcome of the last session, and the error message if there was an error."""
    sessions = read_sessions(folder)
    sessions[-1] |= {"ended": _now(), "outcome": outcome, "message": message}
    _write(folder, sessions)


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """Read the sessions, oldest first. Raises `RunFolderError` if the file is damaged."""
    path = folder / SESSIONS_FILE
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))["sessions"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} is not a record of a run's sessions ({error}). Move it away; the checkpoints do not "
            "depend on it."
        ) from error


def _write(folder: Path, sessions: list[dict[str, Any]]) -> None:
    text = json.dumps({"sessions": sessions}, indent=1, default=str)
    atomic_write(folder / SESSIONS_FILE, text + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
