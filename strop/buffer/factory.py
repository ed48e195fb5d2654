"""Buffers opened from a run file's `buffer` section: in this process, or as clients of a buffer process."""

from __future__ import annotations

import importlib.util
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never

from strop.buffer.backup import Backup, NoBackup, delete_backup, open_backup
from strop.buffer.file import FileBuffer, clear_folder
from strop.buffer.queue import QueueBuffer
from strop.buffer.queue_policy import FifoPolicy, PriorityPolicy, PriorityRule, QueuePolicy
from strop.buffer.remote import BufferClientRole, BufferServer, RemoteStore
from strop.buffer.store import GroupStore, InMemoryStore
from strop.config.schema import buffer as schema
from strop.errors import MissingExtraError
from strop.workers.cleanup import closing
from strop.workers.connection import SocketServer
from strop.workers.waiting import StopCheck, never_stop

if TYPE_CHECKING:
    from strop.buffer.sql.buffer import SqlBuffer

BufferRole = Literal["both", "writer", "reader"]
"""The role of a process in a buffer. A reader waits as long as a writer may still write."""
_DRIVER = "driver"
"""Member name of the process that both explores and trains."""
BUFFER_ADDRESS_FILE = "buffer-address.json"
"""The file in the run's folder with the address of the buffer's process."""
DEFAULT_BACKUP = "buffer.db"
"""The backup of a buffer process, if the run file names none."""
InMemoryBufferConfig = schema.QueueBufferConfig | schema.PriorityBufferConfig


def open_buffer(
    section: schema.BufferConfig,
    folder: Path,
    *,
    role: BufferRole = "both",
    member_name: str | None = None,
    check: StopCheck = never_stop,
) -> QueueBuffer | FileBuffer | SqlBuffer:
    """Open the buffer of a `buffer` section, with the groups that an interrupted run left in it; close it.

    Args:
        folder: the run's folder, the base of relative paths.
        role: a queue's writer or reader is a client of the buffer's own process, see `serve_buffer`.
        member_name: the name of this process among those that share a database or a buffer process. It
            replaces an earlier process of the same name, and takes over its leases at once. By default it is
            `driver` for the role `both`, and a new name for the other roles.
        check: called at least once a second during waits; may raise.
    """
    match section:
        case schema.QueueBufferConfig() | schema.PriorityBufferConfig():
            if role == "both":
                store: GroupStore = _make_store(section, _open_optional_backup(section.backup, folder))
            else:
                client = BufferClientRole(
                    member_name or _unique_member_name(role), reads=role == "reader", writes=role == "writer"
                )
                store = RemoteStore(folder / BUFFER_ADDRESS_FILE, client, check)
            return make_queue_buffer(store, section, check)
        case schema.FileBufferConfig():
            return FileBuffer(
                _resolve_path(folder, section.path),
                section.format,
                read_timeout_seconds=section.read_timeout_seconds,
                check=check,
            )
        case schema.SqlBufferConfig():
            return _open_sql(section, folder, role, member_name, check)
        case _:
            assert_never(section)


def require_buffer(section: schema.BufferConfig) -> None:
    """Raise ConfigError for a database whose package is not installed, or whose URL cannot be one; connects to none."""
    if not isinstance(section, schema.SqlBufferConfig):
        return
    if importlib.util.find_spec("sqlalchemy") is None:
        raise MissingExtraError("`buffer: sql` needs SQLAlchemy: pip install 'strop[sql]'")
    if section.url is not None:
        from strop.buffer.sql.database import parse_url

        parse_url(section.url)


def make_queue_buffer(store: GroupStore, section: InMemoryBufferConfig, check: StopCheck) -> QueueBuffer:
    """A queue buffer with the section's limits; the writers of a priority queue never wait."""
    return QueueBuffer(
        store,
        capacity_groups=section.capacity_groups,
        read_timeout_seconds=section.read_timeout_seconds,
        write_timeout_seconds=getattr(section, "write_timeout_seconds", 0.0),
        check=check,
    )


def backup_path(section: schema.BufferConfig, folder: Path) -> Path:
    """The backup of a buffer process, which always has one."""
    assert isinstance(section, InMemoryBufferConfig)
    return _resolve_path(folder, section.backup or DEFAULT_BACKUP)


@contextmanager
def serve_buffer(section: InMemoryBufferConfig, folder: Path, host: str) -> Iterator[SocketServer]:
    """A context in which this process serves a run's buffer to writers and readers in other processes.

    `host` is an address of this machine that they can reach.
    """
    store = _make_store(section, open_backup(backup_path(section, folder)))
    with closing(store), closing(SocketServer(host, BufferServer(store).serve, "strop-buffer")) as server:
        server.address.save(folder / BUFFER_ADDRESS_FILE)
        yield server
        (folder / BUFFER_ADDRESS_FILE).unlink(missing_ok=True)


def reset_writers(section: schema.BufferConfig, folder: Path) -> None:
    """Delete the writers' states from a backup, before the buffer's process of a resumed run starts."""
    backup = open_backup(backup_path(section, folder))
    backup.record_writers({})
    backup.close()


def clear_buffer(
    section: schema.BufferConfig, folder: Path, *, member_name: str = _DRIVER, is_process: bool = False
) -> None:
    """Delete the groups of an earlier run, before a new run opens the buffer.

    `is_process` says whether a queue is a process of its own. Raises `StoreError` while a process with
    another name than `member_name` uses the buffer.
    """
    match section:
        case schema.QueueBufferConfig() | schema.PriorityBufferConfig():
            if is_process:
                delete_backup(backup_path(section, folder))
            elif section.backup is not None:
                delete_backup(_resolve_path(folder, section.backup))
        case schema.FileBufferConfig():
            clear_folder(_resolve_path(folder, section.path))
        case schema.SqlBufferConfig():
            with _open_sql(section, folder, "reader", member_name, never_stop) as buffer:
                buffer.clear()
        case _:
            assert_never(section)


def _open_sql(
    section: schema.SqlBufferConfig,
    folder: Path,
    role: BufferRole,
    member_name: str | None,
    check: StopCheck,
) -> SqlBuffer:
    require_buffer(section)
    from strop.buffer.sql.buffer import SqlBuffer

    name = _unique_member_name(role) if member_name is None else member_name
    return SqlBuffer(section, folder, writes=role != "reader", member_name=name, check=check)


def _unique_member_name(role: BufferRole) -> str:
    if role == "both":
        return _DRIVER
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def _make_store(section: InMemoryBufferConfig, backup: Backup) -> InMemoryStore:
    def new_policy() -> QueuePolicy:
        if isinstance(section, schema.PriorityBufferConfig):
            rule = PriorityRule(section.use_penalty, section.noise, section.max_uses)
            return PriorityPolicy(section.capacity_groups, section.reuse_cooldown_seconds, rule=rule)
        return FifoPolicy(section.capacity_groups)

    try:
        return InMemoryStore(new_policy, backup)
    except BaseException:
        backup.close()
        raise


def _open_optional_backup(path: str | None, folder: Path) -> Backup:
    return NoBackup() if path is None else open_backup(_resolve_path(folder, path))


def _resolve_path(folder: Path, path: str) -> Path:
    return folder / Path(path).expanduser()
