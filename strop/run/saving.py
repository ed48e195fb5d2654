"""Saving a run's state in the loop, or beside it from a copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from strop.config.schema import Run
from strop.config.schema.trainer import SingleEngine
from strop.protocols import Snapshot, WrittenFile


@dataclass(frozen=True, slots=True)
class Snapshots:
    """Those of several engines, each in a folder of its own inside the checkpoint's; `.` is that itself."""

    parts: Mapping[str, Snapshot]
    together: bool
    """Whether they are written side by side."""

    def beside(self, folder: str, part: Snapshot) -> Snapshots:
        """These and another one."""
        return Snapshots({**self.parts, folder: part}, self.together)

    def begin(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, WrittenFile]]:
        """See `strop.protocols.Snapshot`."""
        writes = {}
        for name, part in self.parts.items():
            (folder / name).mkdir(exist_ok=True)
            writes[name] = part.begin(folder / name, copied=copied)

        def write() -> Mapping[str, WrittenFile]:
            with ThreadPoolExecutor(len(writes) if self.together else 1, "strop-save") as threads:
                written = {name: threads.submit(write) for name, write in writes.items()}
            return {
                (PurePosixPath(name) / file).as_posix(): what
                for name, future in written.items()
                for file, what in future.result().items()
            }

        return write


def engines_together(run: Run) -> bool:
    """Whether `checkpoint.writers` lets all engines be written at once. Ranks take turns by engine: where
    they have to, one engine's come after the other's."""
    match run.checkpoint.writers:
        case "all":
            return True
        case "thread":
            return False
        case "process" | "node":
            return isinstance(run.trainer.engine, SingleEngine)


class Saver:
    """One save at a time. Beside the loop it is written by a thread, and what depends on it waits for that.

    Consumes    what writes a checkpoint, and what may happen once it is there.
    Waits for   the save before, when the next one comes or the run ends.
    Unblocked   by the disk.
    """

    def __init__(self, *, beside: bool) -> None:
        self._threads = ThreadPoolExecutor(1, "strop-save") if beside else None
        self._under_way: tuple[Future[None], Callable[[], None]] | None = None

    def save(self, write: Callable[[], None], then: Callable[[], None]) -> None:
        """Write, once the one before is there, and then, in the caller's thread, do the other."""
        self.wait()
        if self._threads is None:
            write()
            then()
        else:
            self._under_way = self._threads.submit(write), then

    def look(self) -> None:
        """Do what a save that has ended allows. Raises what it raised."""
        if self._under_way is not None and self._under_way[0].done():
            self.wait()

    def wait(self) -> None:
        """The same, once the save under way has ended."""
        if self._under_way is not None:
            (saved, then), self._under_way = self._under_way, None
            saved.result()
            then()

    def close(self) -> None:
        """Let a save under way come to its end, however the run ended, and be kept."""
        if self._threads is not None:
            self._threads.shutdown()
