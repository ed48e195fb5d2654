"""Sessions of a run in `run.json`: one for each start; a run that was interrupted and resumed has several."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from strop.config.load.schema_faults import first_fault
from strop.errors import RunFolderError
from strop.workers.files import atomic_write, read_regular
from strop.workers.json_text import parse_json

SESSIONS_FILE = "run.json"

SessionOutcome = Literal["finished", "interrupted", "failed", "killed"]
"""Outcome of a session. It is null while the session runs; the next session replaces null by `killed`."""


def _require_time(stamp: str) -> str:
    datetime.fromisoformat(stamp)
    return stamp


_Time = Annotated[str, AfterValidator(_require_time)]


class _Part(BaseModel):
    """A part of a session: types of the values that are read again."""

    model_config = ConfigDict(strict=True)


class _Host(_Part):
    name: str
    system: str
    cores: int | None
    memory_gb: float
    gpus: list[str]


class _Git(_Part):
    commit: str
    modified: bool


class _SetAside(_Part):
    key: str
    value: Any
    instead: str


class _Session(_Part):
    """Types of the values of a session that are read again."""

    started: _Time
    ended: _Time | None
    outcome: SessionOutcome | None
    message: str | None
    steps: int
    from_step: int
    command: str
    notes: list[str]
    set_aside: list[_SetAside]
    python: str
    packages: dict[str, str]
    host: _Host
    git: _Git = _Git(commit="", modified=False)
    checkpoint_step: int | None = None
    changed_afterwards: list[str] = []


class _Sessions(BaseModel):
    """The file."""

    sessions: list[_Session]


def begin_session(folder: Path, facts: Mapping[str, Any]) -> str | None:
    """Append a session. An earlier session without an outcome is marked as killed.

    A damaged file is renamed; the message for the user says so.
    """
    note = None
    try:
        sessions = read_sessions(folder)
    except RunFolderError:
        path = folder / SESSIONS_FILE
        damaged = path.rename(path.with_name(f"{path.name}.damaged-{datetime.now():%Y%m%d-%H%M%S}"))
        sessions, note = (
            [],
            f"{path} was damaged; it is now {damaged.name}, and the list of sessions starts again.",
        )
    for session in sessions:
        session["outcome"] = session["outcome"] or "killed"
    sessions.append({"started": _now(), "ended": None, "outcome": None, "message": None, **facts})
    _write(folder, sessions)
    return note


def end_session(folder: Path, outcome: SessionOutcome, message: str | None) -> None:
    """Record the outcome of the last session, and the error message if there was an error."""
    sessions = read_sessions(folder)
    sessions[-1] |= {"ended": _now(), "outcome": outcome, "message": message}
    _write(folder, sessions)


def record_checkpoint(folder: Path, step: int) -> None:
    """Record in the last session that the checkpoint of `step` is complete."""
    sessions = read_sessions(folder)
    sessions[-1]["checkpoint_step"] = step
    _write(folder, sessions)


def record_changes(folder: Path, differences: Sequence[str]) -> None:
    """Record in the last session the settings that change for the sessions after it."""
    sessions = read_sessions(folder)
    sessions[-1].setdefault("changed_afterwards", []).extend(differences)
    _write(folder, sessions)


def last_checkpoint_step(sessions: Sequence[Mapping[str, Any]]) -> int:
    """Return the step of the last checkpoint that any session has completed; 0 if there is none."""
    return max((int(session.get("checkpoint_step") or 0) for session in sessions), default=0)


def read_sessions(folder: Path) -> list[dict[str, Any]]:
    """Read the sessions, oldest first. Raises `RunFolderError` if the file is damaged."""
    path = folder / SESSIONS_FILE
    if not path.exists():
        return []
    try:
        content = parse_json(read_regular(path))
        _Sessions.model_validate(content)
        return [dict(session) for session in content["sessions"]]
    except (OSError, ValueError) as error:
        reason = first_fault(error) if isinstance(error, ValidationError) else error
        raise RunFolderError(
            f"{path} is not a record of a run's sessions ({reason}). Move it away; the checkpoints do not "
            "depend on it."
        ) from error


def _write(folder: Path, sessions: list[dict[str, Any]]) -> None:
    text = json.dumps({"sessions": sessions}, indent=1, default=str)
    atomic_write(folder / SESSIONS_FILE, text + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
