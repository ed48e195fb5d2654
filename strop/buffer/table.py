"""From a run file's `buffer` section to a buffer."""

from __future__ import annotations

import importlib.util
import os
import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never

from strop.buffer.backup import Backup, NoBackup, open_backup, remove_backup
from strop.buffer.file import FileBuffer, clear_folder
from strop.buffer.priority import Priority
from strop.buffer.queue import Fifo, Queue
from strop.buffer.wait import Check, never_stop
from strop.config.schema import buffer as schema
from strop.errors import MissingExtraError

if TYPE_CHECKING:
    from strop.buffer.sql.store import SqlBuffer

Part = Literal["both", "writer", "reader"]
"""What a process does with a buffer. A reader waits as long as a writer may still write."""
_DRIVER = "driver"
"""The one process of a run that both explores and trains."""


def open_buffer(
    section: schema.Buffer,
    folder: Path,
    *,
    part: Part = "both",
    member: str | None = None,
    check: Check = never_stop,
) -> Queue | FileBuffer | SqlBuffer:
    """The buffer that the section asks for, with all that an interrupted run left in it; close it.

    `folder` is the run's: relative paths stand in it. `member` names the process among those that
    share a database: it takes the place of an earlier one of its name, with its claims at once.
    Left out, it is `driver` for one that does both, alone, and a new name for any other. `check` is
    called at least once a second by whatever waits, and may raise.
    """
    match section:
        case schema.QueueBuffer():
            return Queue(
                Fifo(section.capacity_groups),
                _backup(section.backup, folder),
                read_timeout_seconds=section.read_timeout_seconds,
                write_timeout_seconds=section.write_timeout_seconds,
                check=check,
            )
        case schema.PriorityBuffer():
            return Queue(
                Priority(section.capacity_groups, section.reuse_cooldown_seconds),
                _backup(section.backup, folder),
                read_timeout_seconds=section.read_timeout_seconds,
                write_timeout_seconds=0.0,  # it never makes a writer wait
                check=check,
            )
        case schema.FileBuffer():
            return FileBuffer(
                _in(folder, section.path),
                section.format,
                read_timeout_seconds=section.read_timeout_seconds,
                check=check,
            )
        case schema.SqlBuffer():
            return _open_sql(section, folder, part, member, check)
        case _:
            assert_never(section)


def clear_buffer(section: schema.Buffer, folder: Path, *, member: str = _DRIVER) -> None:
    """Take out what an earlier run left: for a run that starts anew, before it opens the buffer.

    Raises `StoreError` while another process, of another name than `member`, is at work in it.
    """
    match section:
        case schema.QueueBuffer() | schema.PriorityBuffer():
            if section.backup is not None:
                remove_backup(_in(folder, section.backup))
        case schema.FileBuffer():
            clear_folder(_in(folder, section.path))
        case schema.SqlBuffer():
            with _open_sql(section, folder, "reader", member, never_stop) as buffer:
                buffer.clear()
        case _:
            assert_never(section)


def _open_sql(
    section: schema.SqlBuffer, folder: Path, part: Part, member: str | None, check: Check
) -> SqlBuffer:
    if importlib.util.find_spec("sqlalchemy") is None:
        raise MissingExtraError("`buffer: sql` needs SQLAlchemy: pip install 'strop[sql]'")
    from strop.buffer.sql.store import SqlBuffer

    new = _DRIVER if part == "both" else f"{part}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
    name = new if member is None else member
    return SqlBuffer(section, folder, writes=part != "reader", member=name, check=check)


def _backup(path: str | None, folder: Path) -> Backup:
    return NoBackup() if path is None else open_backup(_in(folder, path))


def _in(folder: Path, path: str) -> Path:
    return folder / Path(path).expanduser()
