"""Tags, a note and the archive mark of a run, in `.studio/notes.json` of its folder; and the trash for deleted runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from strop.errors import RunFolderError
from strop.workers.files import atomic_write
from strop.workers.json_text import read_object

TRASH = ".trash"
"""Folder for deleted runs, next to the projects; the list of runs leaves it out."""
_MAX_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class RunNotes:
    """Tags, note and archive mark of a run."""

    tags: tuple[str, ...] = ()
    note: str = ""
    is_archived: bool = False
    fault: str | None = None
    """Why the file's notes cannot be shown; such a file is kept as `notes.json.damaged` when new notes are written."""


def read_notes(run_folder: Path) -> RunNotes:
    """The notes of a run; empty ones where there are none, with a fault where the file is damaged."""
    file = _file(run_folder)
    try:
        values = read_object(file, max_bytes=_MAX_BYTES)
        tags = tuple(str(tag) for tag in values.get("tags", ()))
        return RunNotes(tags, str(values.get("note", "")), values.get("is_archived") is True)
    except FileNotFoundError:
        return RunNotes()
    except (OSError, ValueError, TypeError) as error:
        return RunNotes(fault=f"The notes in {file} are damaged and not shown: {error}")


def write_notes(run_folder: Path, notes: RunNotes) -> None:
    """Write the notes of a run. Raises `RunFolderError`."""
    file = _file(run_folder)
    content = {name: value for name, value in asdict(notes).items() if name != "fault"}
    try:
        file.parent.mkdir(exist_ok=True)
        if read_notes(run_folder).fault is not None:
            file.rename(f"{file}.damaged")
        atomic_write(file, json.dumps(content) + "\n")
    except OSError as error:
        raise RunFolderError(f"{file} cannot be written: {error.strerror or error}.") from error


def move_to_trash(run_folder: Path, root: Path) -> Path:
    """Move the folder of a run into the trash below the folder of runs; returns where. Raises `RunFolderError`."""
    run, runs = run_folder.resolve(), root.resolve()
    if run == runs or not run.is_relative_to(runs):
        raise RunFolderError(f"{run_folder} is not below {root}, so Studio does not delete it.")
    to = (
        runs
        / TRASH
        / f"{run.relative_to(runs).as_posix().replace('/', '--')}-{datetime.now():%Y%m%d-%H%M%S-%f}"
    )
    try:
        to.parent.mkdir(exist_ok=True)
        run.rename(to)
    except OSError as error:
        raise RunFolderError(f"{run_folder} cannot be moved to {to}: {error.strerror or error}.") from error
    return to


def _file(run_folder: Path) -> Path:
    return run_folder / ".studio" / "notes.json"
