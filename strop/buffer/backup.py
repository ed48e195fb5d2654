"""What a buffer in memory writes down, so that an interrupted run's groups can be taken up again."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from filelock import FileLock, Timeout

from strop.buffer.codec import decode, encode, from_row, to_json
from strop.buffer.order import Use
from strop.config.schema.buffer import SQLITE_SUFFIXES
from strop.errors import StoreError
from strop.types import ExperienceGroup

log = logging.getLogger("strop.buffer")

FORMAT = 1
_PATIENCE_SECONDS = 30.0
"""The buffer of a run that was killed may be there a little longer."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a backup holds when it is opened."""

    groups: Sequence[tuple[ExperienceGroup, int]] = ()
    """Those not done, oldest first, with how often they were used."""
    done: frozenset[str] = field(default_factory=frozenset)
    """The ids of those that are done, which are never taken in again."""
    writers: Mapping[str, bool] = field(default_factory=dict)
    """Of a buffer that is a process of its own: who writes into it, and whether they have finished."""


class Backup(Protocol):
    """Written before memory changes; survives the process (not the machine) at any moment."""

    def restore(self) -> Kept:
        """What is in it."""
        ...

    def put(self, group: ExperienceGroup) -> None:
        """A group came in."""
        ...

    def used(self, uses: Sequence[Use]) -> None:
        """Groups were used, and will be again."""
        ...

    def done(self, ids: Sequence[str]) -> None:
        """Groups were used for the last time, or dropped."""
        ...

    def writers(self, states: Mapping[str, bool]) -> None:
        """Who writes, and whether they have finished."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class NoBackup:
    """Keeps nothing."""

    def restore(self) -> Kept:
        """Nothing."""
        return Kept()

    def put(self, group: ExperienceGroup) -> None:
        """Keep nothing."""

    def used(self, uses: Sequence[Use]) -> None:
        """Keep nothing."""

    def done(self, ids: Sequence[str]) -> None:
        """Keep nothing."""

    def writers(self, states: Mapping[str, bool]) -> None:
        """Keep nothing."""

    def close(self) -> None:
        """Nothing was opened."""


def open_backup(path: Path) -> Backup:
    """SQLite or JSON Lines, as the file's name ends. Raises `StoreError` where that cannot be done."""
    with _about(path):
        return SqliteBackup(path) if path.suffix.lower() in SQLITE_SUFFIXES else JsonLinesBackup(path)


@contextmanager
def _about(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"The buffer's backup {path} cannot be read or written: {error}. Set `buffer.backup` to a file "
            "where you may write, with room on its disk, or to one that Strop made."
        ) from error


def remove_backup(path: Path) -> None:
    """Delete it. Raises `StoreError` while another process uses it."""
    lock = _lock(path)
    with _about(path):
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
    lock.release()


class SqliteBackup:
    """A table with a row per group; the rows of those that are done keep only their id."""

    def __init__(self, path: Path) -> None:
        self._lock = _lock(path)
        self._path = path
        self._rows = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._rows.execute("PRAGMA journal_mode = WAL")
        self._rows.execute("PRAGMA synchronous = NORMAL")
        (version,) = self._rows.execute("PRAGMA user_version").fetchone()
        if version not in (0, FORMAT):
            raise StoreError(f"{path} is a backup in format {version}; this version of Strop reads {FORMAT}.")
        self._rows.execute(f"PRAGMA user_version = {FORMAT}")
        self._rows.execute(
            "CREATE TABLE IF NOT EXISTS groups (number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, "
            "uses INTEGER NOT NULL DEFAULT 0, content BLOB)"
        )
        self._rows.execute(
            "CREATE TABLE IF NOT EXISTS writers (name TEXT PRIMARY KEY, finished INTEGER NOT NULL)"
        )

    def restore(self) -> Kept:
        """What is in it."""
        kept = "SELECT content, uses FROM groups WHERE content IS NOT NULL ORDER BY number"
        groups = [(decode(content), uses) for content, uses in self._rows.execute(kept)]
        done = self._rows.execute("SELECT id FROM groups WHERE content IS NULL")
        writers = self._rows.execute("SELECT name, finished FROM writers")
        states = {name: bool(finished) for name, finished in writers}
        return Kept(groups, frozenset(id for (id,) in done), states)

    def put(self, group: ExperienceGroup) -> None:
        """A new row."""
        with _about(self._path):
            self._rows.execute("INSERT INTO groups (id, content) VALUES (?, ?)", (group.id, encode(group)))

    def used(self, uses: Sequence[Use]) -> None:
        """So many uses, unless there were more."""
        with self._transaction():
            by_use = [(use, id) for id, use in uses]
            self._rows.executemany("UPDATE groups SET uses = max(uses, ?) WHERE id = ?", by_use)

    def done(self, ids: Sequence[str]) -> None:
        """Forget the content; its room is used again."""
        with self._transaction():
            self._rows.executemany("UPDATE groups SET content = NULL WHERE id = ?", [(id,) for id in ids])

    def writers(self, states: Mapping[str, bool]) -> None:
        """A row for each."""
        with self._transaction():
            self._rows.execute("DELETE FROM writers")
            self._rows.executemany("INSERT INTO writers (name, finished) VALUES (?, ?)", states.items())

    def close(self) -> None:
        """Let go of the file."""
        self._rows.close()
        self._lock.release()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _about(self._path):
            self._rows.execute("BEGIN")
            yield
            self._rows.execute("COMMIT")


class JsonLinesBackup:
    """A line per event: `{"put": group}`, `{"used": {id: uses}}`, `{"done": [ids]}`, and of a buffer that is
    a process of its own `{"writers": {name: finished}}`.

    It grows with the run; when it is opened again, what is done is taken out, and its ids stay.
    """

    def __init__(self, path: Path) -> None:
        self._lock = _lock(path)
        self._path = path
        self._compact(self._read() if path.exists() else Kept())
        self._lines: IO[str] = path.open("a", encoding="utf-8")

    def restore(self) -> Kept:
        """What is in it."""
        return self._read()

    def put(self, group: ExperienceGroup) -> None:
        """A line with the group."""
        self._write(_put_line(group))

    def used(self, uses: Sequence[Use]) -> None:
        """A line with the ids and their uses."""
        self._write(json.dumps({"used": dict(uses)}) + "\n")

    def done(self, ids: Sequence[str]) -> None:
        """A line with the ids."""
        self._write(json.dumps({"done": list(ids)}) + "\n")

    def writers(self, states: Mapping[str, bool]) -> None:
        """A line with all of them."""
        self._write(json.dumps({"writers": dict(states)}) + "\n")

    def close(self) -> None:
        """Let go of the file."""
        self._lines.close()
        self._lock.release()

    def _write(self, lines: str) -> None:
        with _about(self._path):
            self._lines.write(lines)
            self._lines.flush()

    def _read(self) -> Kept:
        """Read the file line by line. A last line without its end was being written when the run died."""
        groups: dict[str, ExperienceGroup] = {}
        uses: dict[str, int] = {}
        done: set[str] = set()
        writers: dict[str, bool] = {}
        with self._path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith("\n"):
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
        kept = [(group, uses.get(group.id, 0)) for group in groups.values()]
        return Kept(kept, frozenset(done), writers)

    def _event(self, line: str, number: int) -> tuple[str, Any]:
        """What a line says: the group that was put, the ids that were used or are done, who writes."""
        try:
            [(event, content)] = json.loads(line).items()
            if event == "put":
                return event, from_row(content)
            if event == "done":
                return event, [str(id) for id in content]
            if event == "used":
                return event, {str(id): int(use) for id, use in content.items()}
            if event == "writers":
                return event, {str(name): bool(finished) for name, finished in content.items()}
            why = f"it says {event!r}"
        except (ValueError, TypeError, AttributeError, StoreError) as error:
            why = str(error)
        raise StoreError(
            f"{self._path} line {number} is no line of a buffer's backup: {why}. Take that line out, or set "
            "`buffer.backup` to another file."
        )

    def _compact(self, kept: Kept) -> None:
        """Write what is kept into a new file, and put that in the place of the old one."""
        beside = self._path.with_name(self._path.name + ".new")
        with beside.open("w", encoding="utf-8") as lines:
            lines.write(json.dumps({"done": sorted(kept.done)}) + "\n")
            lines.write(json.dumps({"writers": dict(kept.writers)}) + "\n")
            for group, uses in kept.groups:
                lines.write(_put_line(group))
                if uses:
                    lines.write(json.dumps({"used": {group.id: uses}}) + "\n")
        beside.replace(self._path)


def _put_line(group: ExperienceGroup) -> str:
    return f'{{"put": {to_json(group)}}}\n'


def _lock(path: Path) -> FileLock:
    """Two runs that share a backup would train on each other's groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(path.name + ".lock"))
    with suppress(Timeout):
        lock.acquire(timeout=0)
        return lock
    log.warning("Another process has the buffer's backup %s; waiting %.0f s for it.", path, _PATIENCE_SECONDS)
    try:
        lock.acquire(timeout=_PATIENCE_SECONDS)
    except Timeout:
        raise StoreError(
            f"The buffer's backup {path} is in use by another process. Set `buffer.backup` to a file of "
            "this run alone."
        ) from None
    return lock
