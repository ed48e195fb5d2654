"""Backups of in-memory buffers, from which an interrupted run restores its groups."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from strop.buffer.codec import decode, encode, from_row, to_json
from strop.buffer.queue_policy import GroupUse
from strop.config.schema.buffer import SQLITE_SUFFIXES
from strop.errors import StoreError
from strop.types import ExperienceGroup
from strop.workers.files import AppendFile, atomic_path
from strop.workers.json_text import parse_json

log = logging.getLogger("strop.buffer")

FORMAT = 1
_TABLES = f"""
PRAGMA user_version = {FORMAT};
CREATE TABLE groups (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, uses INTEGER NOT NULL DEFAULT 0, content BLOB
);
CREATE TABLE writers (name TEXT PRIMARY KEY, finished INTEGER NOT NULL);
"""
_LOCK_TIMEOUT_SECONDS = 30.0
"""Longest wait for the lock, which a killed run's buffer process may hold for a little longer."""


@dataclass(frozen=True, slots=True)
class BackupContents:
    """The contents of a backup when it is opened."""

    groups: Sequence[tuple[ExperienceGroup, int]] = ()
    """Groups that are not done, oldest first, with the number of their uses."""
    done: frozenset[str] = field(default_factory=frozenset)
    """Ids of the groups that are done, which are never stored again."""
    writers: Mapping[str, bool] = field(default_factory=dict)
    """Writers of a buffer process, and whether each has finished."""


class Backup(Protocol):
    """Written before each change in memory; survives a kill of the process, but not a crash of the machine."""

    def restore(self) -> BackupContents:
        """Read the backup."""
        ...

    def put(self, group: ExperienceGroup) -> None:
        """Record a new group."""
        ...

    def record_uses(self, uses: Sequence[GroupUse]) -> None:
        """Record uses of groups that can be used again."""
        ...

    def record_done(self, ids: Sequence[str]) -> None:
        """Record groups that were used for the last time, or dropped."""
        ...

    def record_writers(self, states: Mapping[str, bool]) -> None:
        """Record the writers, and whether each has finished."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class NoBackup:
    """A `Backup` that stores nothing."""

    def restore(self) -> BackupContents:
        """Always empty."""
        return BackupContents()

    def put(self, group: ExperienceGroup) -> None:
        """Does nothing."""

    def record_uses(self, uses: Sequence[GroupUse]) -> None:
        """Does nothing."""

    def record_done(self, ids: Sequence[str]) -> None:
        """Does nothing."""

    def record_writers(self, states: Mapping[str, bool]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def open_backup(path: Path) -> Backup:
    """Open a SQLite or JSON Lines backup, by the file name's suffix. Raises `StoreError` if it cannot be
    opened."""
    kind = SqliteBackup if path.suffix.lower() in SQLITE_SUFFIXES else JsonLinesBackup
    with _storage_errors(path):
        lock = _lock(path)
        try:
            return kind(path, lock)
        except BaseException:
            lock.release()
            raise


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:  # the last: a damaged schema
        raise StoreError(
            f"The buffer's backup {path} cannot be read or written: {error}. Set `buffer.backup` to a file "
            "that this process can write, on a disk with free space, or to a backup that Strop wrote."
        ) from error


def delete_backup(path: Path) -> None:
    """Delete a backup. Raises `StoreError` while another process uses it."""
    lock = _lock(path)
    with _storage_errors(path):
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
    lock.release()


class SqliteBackup:
    """A `Backup` in a SQLite table with one row per group; done groups keep only their id."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self._lock = lock
        self._path = path
        if not path.exists():
            with atomic_path(path) as temporary, closing(sqlite3.connect(temporary)) as new:
                new.executescript(_TABLES)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._require_format()
        except BaseException:
            self._connection.close()
            raise

    def _require_format(self) -> None:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            raise _not_a_backup(self._path)
        if version != FORMAT:
            raise StoreError(
                f"{self._path} is a backup in format {version}; this version of Strop reads {FORMAT}. Resume the "
                "run with the version that wrote it, or set `buffer.backup` to another file."
            )

    def restore(self) -> BackupContents:
        kept = "SELECT content, uses FROM groups WHERE content IS NOT NULL ORDER BY number"
        with _storage_errors(self._path):
            rows = self._connection.execute(kept).fetchall()
            done = self._connection.execute("SELECT id FROM groups WHERE content IS NULL").fetchall()
            writers = self._connection.execute("SELECT name, finished FROM writers").fetchall()
        try:
            groups = [(decode(content), int(uses)) for content, uses in rows]
        except (StoreError, ValueError, TypeError) as error:
            raise StoreError(
                f"The buffer's backup {self._path} is damaged: {error} Restore it, or set `buffer.backup` to another "
                "file, which leaves out the groups that it has."
            ) from error
        states = {name: bool(finished) for name, finished in writers}
        return BackupContents(groups, frozenset(id for (id,) in done), states)

    def put(self, group: ExperienceGroup) -> None:
        """Inserts a row."""
        with _storage_errors(self._path):
            self._connection.execute(
                "INSERT INTO groups (id, content) VALUES (?, ?)", (group.id, encode(group))
            )

    def record_uses(self, uses: Sequence[GroupUse]) -> None:
        """Never decreases the number of uses."""
        with self._transaction():
            by_use = [(use, id) for id, use in uses]
            self._connection.executemany("UPDATE groups SET uses = max(uses, ?) WHERE id = ?", by_use)

    def record_done(self, ids: Sequence[str]) -> None:
        """Deletes the content; SQLite reuses its space."""
        with self._transaction():
            self._connection.executemany(
                "UPDATE groups SET content = NULL WHERE id = ?", [(id,) for id in ids]
            )

    def record_writers(self, states: Mapping[str, bool]) -> None:
        """Replaces the rows of all writers."""
        with self._transaction():
            self._connection.execute("DELETE FROM writers")
            self._connection.executemany("INSERT INTO writers (name, finished) VALUES (?, ?)", states.items())

    def close(self) -> None:
        self._connection.close()
        self._lock.release()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _storage_errors(self._path):
            self._connection.execute("BEGIN")
            yield
            self._connection.execute("COMMIT")


class JsonLinesBackup:
    """A `Backup` with one line of JSON per event: `{"put": group}`, `{"used": {id: uses}}`, `{"done":
    [ids]}`, and for a buffer process `{"writers": {name: finished}}`.

    The file grows during the run; opening it again removes the contents of done groups, and keeps their ids.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        self._lock = lock
        self._path = path
        self._compact(self._read() if path.exists() else BackupContents())
        self._lines = AppendFile(path)

    def restore(self) -> BackupContents:
        return self._read()

    def put(self, group: ExperienceGroup) -> None:
        """Appends a line with the group."""
        self._write(_put_line(group))

    def record_uses(self, uses: Sequence[GroupUse]) -> None:
        """Appends a line with the ids and their uses."""
        self._write(json.dumps({"used": dict(uses)}) + "\n")

    def record_done(self, ids: Sequence[str]) -> None:
        """Appends a line with the ids."""
        self._write(json.dumps({"done": list(ids)}) + "\n")

    def record_writers(self, states: Mapping[str, bool]) -> None:
        """Appends a line with all writers."""
        self._write(json.dumps({"writers": dict(states)}) + "\n")

    def close(self) -> None:
        self._lines.close()
        self._lock.release()

    def _write(self, lines: str) -> None:
        with _storage_errors(self._path):
            self._lines.append(lines.encode())

    def _read(self) -> BackupContents:
        """Read the file line by line. A last line without a line break was not complete when the run was
        killed."""
        groups: dict[str, ExperienceGroup] = {}
        uses: dict[str, int] = {}
        done: set[str] = set()
        writers: dict[str, bool] = {}
        number = 0
        with self._path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    break
                event, content = self._event(line, number)
                match event:
                    case "put":
                        groups[content.id] = content
                    case "used":
                        uses |= {id: max(use, uses.get(id, 0)) for id, use in content.items()}
                    case "done":
                        done |= set(content)
                        for id in content:
                            groups.pop(id, None)
                    case "writers":
                        writers = content
        if number == 0:
            raise _not_a_backup(self._path)
        kept = [(group, uses.get(group.id, 0)) for group in groups.values()]
        return BackupContents(kept, frozenset(done), writers)

    def _event(self, line: bytes, number: int) -> tuple[str, Any]:
        """The event of a line and its content: a group, ids with uses, ids, or writers."""
        try:
            [(event, content)] = parse_json(line).items()
            if event == "put":
                return event, from_row(content)
            if event == "done":
                return event, [str(id) for id in content]
            if event == "used":
                return event, {str(id): int(use) for id, use in content.items()}
            if event == "writers":
                return event, {str(name): bool(finished) for name, finished in content.items()}
            why = f"its event is {event!r}"
        except (ValueError, TypeError, AttributeError, StoreError) as error:
            why = str(error)
        raise StoreError(
            f"{self._path} line {number} is not a line of a buffer's backup: {why}. Delete that line, or set "
            "`buffer.backup` to another file."
        )

    def _compact(self, kept: BackupContents) -> None:
        """Replace the file by one with these contents."""
        with atomic_path(self._path) as temporary, temporary.open("w", encoding="utf-8") as lines:
            lines.write(json.dumps({"done": sorted(kept.done)}) + "\n")
            lines.write(json.dumps({"writers": dict(kept.writers)}) + "\n")
            for group, uses in kept.groups:
                lines.write(_put_line(group))
                if uses:
                    lines.write(json.dumps({"used": {group.id: uses}}) + "\n")


def _not_a_backup(path: Path) -> StoreError:
    return StoreError(
        f"The buffer's backup {path} is empty, or not a backup that Strop wrote. Restore it, or set `buffer.backup` to "
        "another file, which leaves out the groups that it had."
    )


def _put_line(group: ExperienceGroup) -> str:
    return f'{{"put": {to_json(group)}}}\n'


def _lock(path: Path) -> FileLock:
    """Lock a backup: two runs that share one would train on each other's groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(path.name + ".lock"))
    with suppress(Timeout):
        lock.acquire(timeout=0)
        return lock
    log.warning(
        "Another process uses the buffer's backup %s; waiting up to %.0f s for it.",
        path,
        _LOCK_TIMEOUT_SECONDS,
    )
    try:
        lock.acquire(timeout=_LOCK_TIMEOUT_SECONDS)
    except Timeout:
        raise StoreError(
            f"The buffer's backup {path} is in use by another process. End that process, or set "
            "`buffer.backup` to a file that only this run uses."
        ) from None
    return lock
