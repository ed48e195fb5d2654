"""Composite snapshots of several engines, and saving in the loop or in a background thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from strop.config.schema import Run
from strop.config.schema.trainer import LocalEngineConfig
from strop.protocols import EngineSnapshot, FileChecksum


@dataclass(frozen=True, slots=True)
class CompositeSnapshot:
    """Snapshots of several engines, each written to a subfolder of the checkpoint."""

    parts: Mapping[str, EngineSnapshot]
    """By subfolder; `.` is the checkpoint's folder itself."""
    parallel: bool
    """Whether all parts are written at the same time."""

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """See `strop.protocols.EngineSnapshot`."""
        writes = {}
        for name, part in self.parts.items():
            (folder / name).mkdir(exist_ok=True)
            writes[name] = part.begin_write(folder / name, copied=copied)

        def write() -> Mapping[str, FileChecksum]:
            with ThreadPoolExecutor(len(writes) if self.parallel else 1, "strop-save") as threads:
                written = {name: threads.submit(write) for name, write in writes.items()}
            return {
                (PurePosixPath(name) / file).as_posix(): checksum
                for name, future in written.items()
                for file, checksum in future.result().items()
            }

        return write


def saves_engines_in_parallel(run: Run) -> bool:
    """Whether `checkpoint.save_concurrency` allows to write all engines at the same time.

    Where ranks may not write at the same time, the engines are written one after the other.
    """
    match run.checkpoint.save_concurrency:
        case "all":
            return True
        case "thread":
            return False
        case "process" | "node":
            return isinstance(run.trainer.engine, LocalEngineConfig)


class CheckpointSaver:
    """Runs one save at a time: in the calling thread, or in a background thread under `async_save`.

    Consumes    a function that writes a checkpoint, and one to call once the checkpoint is complete.
    Waits for   the save before, when the next one starts or the run ends.
    Unblocked   by the disk.
    """

    def __init__(self, *, async_save: bool) -> None:
        self._threads = ThreadPoolExecutor(1, "strop-save") if async_save else None
        self._pending: tuple[Future[None], Callable[[], None]] | None = None

    def save(self, write: Callable[[], None], then: Callable[[], None]) -> None:
        """Call `write` once the save before has ended, and afterwards `then`, in the caller's thread.

        Under `async_save` it returns at once; a later `poll` or `wait` calls `then`.
        """
        self.wait()
        if self._threads is None:
            write()
            then()
        else:
            self._pending = self._threads.submit(write), then

    def poll(self) -> None:
        """Complete a save that has ended. Raises what the save raised."""
        if self._pending is not None and self._pending[0].done():
            self.wait()

    def wait(self) -> None:
        """Wait for the save in progress and complete it. Raises what the save raised."""
        if self._pending is not None:
            (saved, then), self._pending = self._pending, None
            saved.result()
            then()

    def close(self) -> None:
        """Let a save in progress finish, however the run ended, so that its checkpoint is kept.

        Raises what the save raised.
        """
        if self._threads is not None:
            self._threads.shutdown()
        if self._pending is not None:
            self._pending[0].result()
