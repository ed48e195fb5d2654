"""A folder of readable files with groups, one per write; to look at what an explorer makes."""

from __future__ import annotations

import re
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from strop.buffer.codec import check_schema, from_batch, from_json, to_batch, to_json
from strop.buffer.wait import Check, Wait, never_stop
from strop.errors import BufferEnded, StoreError
from strop.protocols import BufferCounts
from strop.types import ExperienceGroup

_NAME = re.compile(r"[0-9]{20}-[0-9a-f]{8}\.(jsonl|parquet)(\.new)?")
_DONE = "done.txt"
_FINISHED = "finished"


class FileBuffer:
    """`<time>-<random>.jsonl` or `.parquet`, in the order of their names, whole or not there at all.

    Any number of processes may write. One may read: it gets every group whose id is not in `done.txt`,
    where acknowledged ids are noted. Nothing is deleted and no writer waits.
    """

    def __init__(
        self,
        folder: Path,
        kind: Literal["jsonl", "parquet"],
        *,
        read_timeout_seconds: float,
        check: Check = never_stop,
    ) -> None:
        self._folder = folder
        self._kind = kind
        self._read_timeout_seconds = read_timeout_seconds
        self._check = check
        self._lock = Condition()
        self._files_read: set[str] = set()
        self._waiting: deque[ExperienceGroup] = deque()
        self._claimed: set[str] = set()
        self._finished = False
        with _about(folder):
            folder.mkdir(parents=True, exist_ok=True)
            done = folder / _DONE
            self._done = set(done.read_text(encoding="utf-8").splitlines()) if done.exists() else set()
        self._ids_read = set(self._done)
        self._ids = self._done | {group.id for file in self._files() for group in _read(file)}

    def put(self, groups: Sequence[ExperienceGroup]) -> None:
        """See `strop.protocols.Buffer`."""
        with self._lock:
            if self._finished:
                raise StoreError("Groups are put into a buffer after `finish` was said of it.")
            new = list({group.id: group for group in groups if group.id not in self._ids}.values())
            if not new:
                return
            with _about(self._folder):
                self._write(new)
            self._ids.update(group.id for group in new)
            self._lock.notify_all()

    def take(self, groups: int, *, timeout_seconds: float | None = None) -> list[ExperienceGroup]:
        """See `strop.protocols.Buffer`."""
        wait = Wait(self._read_timeout_seconds if timeout_seconds is None else timeout_seconds, self._check)
        with self._lock:
            finished = self._look(groups)
            while len(self._waiting) < groups and not finished and wait.left > 0:
                self._lock.wait(wait.slice(f"groups ({len(self._waiting)} of {groups} are there)"))
                finished = self._look(groups)
            taken = [self._waiting.popleft() for _ in range(min(groups, len(self._waiting)))]
            self._claimed.update(group.id for group in taken)
        if groups and not taken and finished:
            raise BufferEnded(f"All groups in {self._folder} are read, and whoever wrote them has finished.")
        wait.end(len(taken), groups, str(self._folder))
        return taken

    def acknowledge(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        with self._lock:
            unknown = [id for id in ids if id not in self._claimed]
            if unknown:
                raise StoreError(f"The group {unknown[0]} is acknowledged, but was not taken from here.")
            self._note_done(ids)
            self._claimed.difference_update(ids)

    def discard(self, ids: Sequence[str]) -> None:
        """See `strop.protocols.Buffer`."""
        with self._lock:
            self._note_done([id for id in ids if id in self._ids - self._done])
            self._claimed.difference_update(ids)
            self._waiting = deque(group for group in self._waiting if group.id not in self._done)

    def finish(self) -> None:
        """See `strop.protocols.Buffer`. The file `finished` says it."""
        self._finished = True
        with _about(self._folder):
            (self._folder / _FINISHED).touch()

    def counts(self) -> BufferCounts:
        """See `strop.protocols.Buffer`; of what this process has written and seen."""
        with self._lock:
            queued = len(self._ids - self._claimed - self._done)
            return BufferCounts(queued, len(self._claimed), len(self._done))

    def close(self) -> None:
        """See `strop.protocols.Buffer`. No file is kept open."""

    def __enter__(self) -> FileBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, groups: Sequence[ExperienceGroup]) -> None:
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.{self._kind}"
        beside = self._folder / f"{name}.new"
        if self._kind == "parquet":
            pq.write_table(pa.Table.from_batches([to_batch(groups)]), beside)
        else:
            beside.write_text("".join(to_json(group) + "\n" for group in groups), encoding="utf-8")
        beside.replace(self._folder / name)
        (self._folder / _FINISHED).unlink(missing_ok=True)

    def _note_done(self, ids: Sequence[str]) -> None:
        with _about(self._folder), (self._folder / _DONE).open("a", encoding="utf-8") as done:
            done.writelines(f"{id}\n" for id in ids)
        self._done.update(ids)
        self._ids_read.update(ids)

    def _files(self) -> list[Path]:
        return sorted(file for file in _files(self._folder) if file.suffix == f".{self._kind}")

    def _look(self, groups: int) -> bool:
        """Read files until so many groups wait; returns whether no more will come after those there are."""
        finished = (self._folder / _FINISHED).exists()
        new = [file for file in self._files() if file.name not in self._files_read]
        for file in new:
            if len(self._waiting) >= groups:
                return False
            found = [group for group in _read(file) if group.id not in self._ids_read]
            self._waiting.extend(found)
            self._ids_read.update(group.id for group in found)
            self._ids.update(group.id for group in found)
            self._files_read.add(file.name)
        return finished


@contextmanager
def _about(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"The folder {folder} for experiences cannot be used: {error.strerror}. Set `buffer.path` to one "
            "where you may write, with room on its disk."
        ) from error


def clear_folder(folder: Path) -> None:
    """Delete the buffer's own files from a folder, and nothing else."""
    for file in [*_files(folder), folder / _DONE, folder / _FINISHED]:
        file.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.glob("*") if _NAME.fullmatch(file.name)]


def _read(file: Path) -> list[ExperienceGroup]:
    try:
        if file.suffix == ".jsonl":
            with file.open(encoding="utf-8") as lines:
                return [from_json(line) for line in lines]
        table = pq.read_table(file)
        check_schema(table.schema, f"The rows of {file.name}")
        return [group for batch in table.to_batches() for group in from_batch(batch)]
    except (StoreError, OSError, pa.ArrowException) as error:
        raise StoreError(f"{file} cannot be read as groups of experiences: {error}") from error
