"""From a run file's `buffer` section to a buffer."""

from __future__ import annotations

import importlib.util
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never

from strop.buffer.apart.desk import Desk
from strop.buffer.apart.remote import Member, RemoteStock
from strop.buffer.backup import Backup, NoBackup, open_backup, remove_backup
from strop.buffer.file import FileBuffer, clear_folder
from strop.buffer.order import Fifo, Order
from strop.buffer.priority import Priority
from strop.buffer.queue import Queue
from strop.buffer.stock import OwnStock, Stock
from strop.buffer.wait import Check, never_stop
from strop.config.schema import buffer as schema
from strop.errors import MissingExtraError
from strop.workers.server import Server

if TYPE_CHECKING:
    from strop.buffer.sql.store import SqlBuffer

Part = Literal["both", "writer", "reader"]
"""What a process does with a buffer. A reader waits as long as a writer may still write."""
_DRIVER = "driver"
"""The one process of a run that both explores and trains."""
ADDRESS = "buffer-address.json"
"""The file of the run's folder by which explorer and trainer find a buffer's process."""
OWN_BACKUP = "buffer.db"
"""The backup of a queue that is a process of its own, where none is named."""
InMemory = schema.QueueBuffer | schema.PriorityBuffer


def open_buffer(
    section: schema.Buffer,
    folder: Path,
    *,
    part: Part = "both",
    member: str | None = None,
    check: Check = never_stop,
) -> Queue | FileBuffer | SqlBuffer:
    """The buffer that the section asks for, with all that an interrupted run left in it; close it.

    A queue of which this process is to be a writer or a reader is a process of its own (`serve_buffer`).
    `folder` is the run's: relative paths stand in it. `member` names the process among those that
    share a database: it takes the place of an earlier one of its name, with its claims at once.
    Left out, it is `driver` for one that does both, alone, and a new name for any other. `check` is
    called at least once a second by whatever waits, and may raise.
    """
    match section:
        case schema.QueueBuffer() | schema.PriorityBuffer():
            if part == "both":
                stock: Stock = _stock(section, _backup(section.backup, folder))
            else:
                named = Member(member or _new_name(part), reads=part == "reader", writes=part == "writer")
                stock = RemoteStock(folder / ADDRESS, named, check)
            return queue_of(stock, section, check)
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


def queue_of(stock: Stock, section: InMemory, check: Check) -> Queue:
    """A queue with the section's limits; one by priority never makes a writer wait."""
    return Queue(
        stock,
        capacity_groups=section.capacity_groups,
        read_timeout_seconds=section.read_timeout_seconds,
        write_timeout_seconds=getattr(section, "write_timeout_seconds", 0.0),
        check=check,
    )


def backup_of(section: schema.Buffer, folder: Path) -> Path:
    """Of a queue that is a process of its own, which always has one."""
    assert isinstance(section, InMemory)
    return _in(folder, section.backup or OWN_BACKUP)


@contextmanager
def serve_buffer(section: InMemory, folder: Path, host: str) -> Iterator[Server]:
    """Inside, this process is a run's buffer, which others open as writers and readers.

    `host` is an address of this machine that they can reach.
    """
    stock = _stock(section, open_backup(backup_of(section, folder)))
    with closing(stock), closing(Server(host, Desk(stock).serve, "strop-buffer")) as server:
        server.address.save(folder / ADDRESS)
        yield server
        (folder / ADDRESS).unlink(missing_ok=True)


def forget_ends(section: schema.Buffer, folder: Path) -> None:
    """Before the process of a run that goes on: who had finished says it anew."""
    backup = open_backup(backup_of(section, folder))
    backup.writers({})
    backup.close()


def clear_buffer(
    section: schema.Buffer, folder: Path, *, member: str = _DRIVER, is_process: bool = False
) -> None:
    """Take out what an earlier run left: for a run that starts anew, before it opens the buffer.

    `is_process` says that a queue is a process of its own. Raises `StoreError` while another process, of
    another name than `member`, is at work in it.
    """
    match section:
        case schema.QueueBuffer() | schema.PriorityBuffer():
            if is_process:
                remove_backup(backup_of(section, folder))
            elif section.backup is not None:
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

    name = _new_name(part) if member is None else member
    return SqlBuffer(section, folder, writes=part != "reader", member=name, check=check)


def _new_name(part: Part) -> str:
    if part == "both":
        return _DRIVER
    return f"{part}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def _stock(section: InMemory, backup: Backup) -> OwnStock:
    def empty() -> Order:
        if isinstance(section, schema.PriorityBuffer):
            return Priority(section.capacity_groups, section.reuse_cooldown_seconds)
        return Fifo(section.capacity_groups)

    return OwnStock(empty, backup)


def _backup(path: str | None, folder: Path) -> Backup:
    return NoBackup() if path is None else open_backup(_in(folder, path))


def _in(folder: Path, path: str) -> Path:
    return folder / Path(path).expanduser()
