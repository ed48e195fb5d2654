"""A buffer in a folder of readable files, one per write; for a look at what an explorer produces."""

from __future__ import annotations

import re
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Condition
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from strop.buffer.codec import check_schema, from_batch, from_json, to_batch, to_json
from strop.buffer.queue import warn_if_incomplete
from strop.errors import BufferExhausted, StoreError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup
from strop.workers.files import AppendFile, atomic_path
from strop.workers.waiting import StopCheck, TimedWait, never_stop

_NAME = re.compile(r"\.?[0-9]{20}-[0-9a-f]{8}\.(jsonl|parquet)(\.new|(\.[0-9a-f-]+)?\.tmp)?")
"""Groups, and what an interrupted write has left (`.new`: of earlier versions of Strop)."""
_DONE = "done.txt"
_FINISHED = "finished"


class FileBuffer:
    """A `Buffer` of files `<time>-<random>.jsonl` or `.parquet`, read in the order of their names.

    Any number of processes may write. One process may read: it gets every group whose id is not in
    `done.txt`, to which acknowledged ids are appended. No file is deleted, and no writer waits.
    """

    def __init__(
        self,
        folder: Path,
        kind: Literal["jsonl", "parquet"],
        *,
        read_timeout_seconds: float,
        check: StopCheck = never_stop,
    ) -> None:
        self._folder = folder
        self._kind = kind
        self._read_timeout_seconds = read_timeout_seconds
        self._check = check
        self._lock = Condition()
        self._files_read: set[str] = set()
        self._queued: deque[ExperienceGroup] = deque()
        self._leased: set[str] = set()
        self._finished = False
        with _storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._done = _read_done(folder / _DONE)
        self._ids_read = set(self._done)
        self._ids = self._done | {group.id for file in self._files() for group in _read(file)}

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        with self._lock:
            if self._finished:
                raise StoreError("Groups cannot be put into a buffer after `finish` was called on it.")
            new = list({group.id: group for group in groups if group.id not in self._ids}.values())
            if not new:
                return
            with _storage_errors(self._folder):
                self._write(new)
            self._ids.update(group.id for group in new)
            self._lock.notify_all()

    def take(self, groups: int, *, timeout_seconds: float | None = None) -> list[ExperienceGroup]:
        wait = TimedWait(
            self._read_timeout_seconds if timeout_seconds is None else timeout_seconds, self._check
        )
        with self._lock:
            finished = self._read_new_files(groups)
            while len(self._queued) < groups and not finished and wait.remaining_seconds > 0:
                self._lock.wait(
                    wait.next_sleep_seconds(f"groups ({len(self._queued)} of {groups} are there)")
                )
                finished = self._read_new_files(groups)
            taken = [self._queued.popleft() for _ in range(min(groups, len(self._queued)))]
            self._leased.update(group.id for group in taken)
        if groups and not taken and finished:
            raise BufferExhausted(f"All groups in {self._folder} are read, and their writers have finished.")
        warn_if_incomplete(wait, len(taken), groups, str(self._folder))
        return taken

    def acknowledge(self, ids: Sequence[str]) -> None:
        with self._lock:
            unknown = [id for id in ids if id not in self._leased]
            if unknown:
                raise StoreError(
                    f"The group {unknown[0]} is acknowledged, but it was not taken from this buffer."
                )
            self._record_done(ids)
            self._leased.difference_update(ids)

    def discard(self, ids: Sequence[str]) -> None:
        with self._lock:
            self._record_done([id for id in ids if id in self._ids - self._done])
            self._leased.difference_update(ids)
            self._queued = deque(group for group in self._queued if group.id not in self._done)

    def finish(self) -> None:
        """Creates the file `finished`."""
        self._finished = True
        with _storage_errors(self._folder):
            (self._folder / _FINISHED).touch()

    def counts(self) -> BufferCounts:
        """Counts what this process has written and read."""
        with self._lock:
            queued = len(self._ids - self._leased - self._done)
            return BufferCounts(queued, len(self._leased), len(self._done))

    def close(self) -> None:
        """No file stays open."""

    def __enter__(self) -> FileBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, groups: Sequence[ExperienceGroup]) -> None:
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.{self._kind}"
        with atomic_path(self._folder / name) as temporary:
            if self._kind == "parquet":
                pq.write_table(pa.Table.from_batches([to_batch(groups)]), temporary)
            else:
                temporary.write_text("".join(to_json(group) + "\n" for group in groups), encoding="utf-8")
        (self._folder / _FINISHED).unlink(missing_ok=True)

    def _record_done(self, ids: Sequence[str]) -> None:
        with _storage_errors(self._folder), closing(AppendFile(self._folder / _DONE)) as done:
            done.append("".join(f"{id}\n" for id in ids).encode())
        self._done.update(ids)
        self._ids_read.update(ids)

    def _files(self) -> list[Path]:
        return sorted(file for file in _files(self._folder) if file.suffix == f".{self._kind}")

    def _read_new_files(self, groups: int) -> bool:
        """Read files until this many groups are queued. Returns whether all files of finished writers are
        read."""
        finished = (self._folder / _FINISHED).exists()
        new = [file for file in self._files() if file.name not in self._files_read]
        for file in new:
            if len(self._queued) >= groups:
                return False
            found = [group for group in _read(file) if group.id not in self._ids_read]
            self._queued.extend(found)
            self._ids_read.update(group.id for group in found)
            self._ids.update(group.id for group in found)
            self._files_read.add(file.name)
        return finished


@contextmanager
def _storage_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"The folder {folder} for experiences cannot be used: {error.strerror}. Set `buffer.path` to a "
            "folder that this process can write to, on a disk with free space."
        ) from error


def clear_folder(folder: Path) -> None:
    """Delete the buffer's own files from a folder, and no others."""
    for file in [*_files(folder), folder / _DONE, folder / _FINISHED]:
        file.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*") if _NAME.fullmatch(file.name)]


def _read_done(file: Path) -> set[str]:
    """The ids of acknowledged groups. A last line without a line break was not complete when the run was killed."""
    try:
        return set(file.read_text(encoding="utf-8").split("\n")[:-1]) if file.exists() else set()
    except UnicodeDecodeError as error:
        raise StoreError(
            f"{file} is damaged, so it is not known which groups were trained on: {error}. Restore it, or delete the "
            "folder and start a new run."
        ) from error


def _read(file: Path) -> list[ExperienceGroup]:
    try:
        if file.suffix == ".jsonl":
            with file.open(encoding="utf-8") as lines:
                return [from_json(line) for line in lines]
        table = pq.read_table(file)
        check_schema(table.schema, f"The rows of {file.name}")
        return [group for batch in table.to_batches() for group in from_batch(batch)]
    except (StoreError, OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(f"{file} cannot be read as groups of experiences: {error}") from error
