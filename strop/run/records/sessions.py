"""`run.json`: the sessions of a run. A run that was interrupted and went on has more than one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from strop.errors import RunFolderError

FILE = "run.json"

Outcome = Literal["finished", "interrupted", "failed", "killed"]
"""How a session ended. `killed` is written by the next one; while none knows better it is null."""


def begin_session(folder: Path, facts: Mapping[str, Any]) -> None:
    """Add a session to the run's. One before it that never said how it ended was killed."""
    sessions = read_sessions(folder)
    for session in sessions:
        session["outcome"] = session["outcome"] or "killed"
    sessions.append({"started": _now(), "ended": None, "outcome": None, "message": None, **facts})
    _write(folder, sessions)


def end_session(folder: Path, outcome: Outcome, message: str | None) -> None:
    """Say how the last session ended."""
    sessions = read_sessions(folder)
    sessions[-1] |= {"ended": _now(), "outcome": outcome, "message": message}
    _write(folder, sessions)


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """The sessions, oldest first. Raises `RunFolderError` where the file cannot be read."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        return list(json.loads(path.read_text(encoding="utf-8"))["sessions"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} is no record of a run ({error}). Move it away; the checkpoints do not depend on it."
        ) from error


def _write(folder: Path, sessions: list[dict[str, Any]]) -> None:
    path = folder / FILE
    beside = path.with_name(f".{FILE}.tmp")
    beside.write_text(json.dumps({"sessions": sessions}, indent=1, default=str) + "\n", encoding="utf-8")
    beside.replace(path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
