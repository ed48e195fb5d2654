"""Checkpoints of a run: when the state between two steps is saved, what is in them, which are kept; composite snapshots
of several engines, saved in the loop or in a background thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from strop.config.save import resolved_text
from strop.config.schema.run import Run
from strop.config.schema.trainer import LocalEngineConfig
from strop.protocols import EngineSnapshot, FileChecksum
from strop.run.state.checkpoint_mirror import CheckpointMirror
from strop.run.state.identity import read_identity, save_identity
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder
from strop.training.checkpoints import checkpoint


@dataclass(frozen=True, slots=True)
class CompositeSnapshot:
    """Snapshots of several engines, each written to a subfolder of the checkpoint."""

    parts: Mapping[str, EngineSnapshot]
    """By subfolder; `.` is the checkpoint's folder itself."""
    parallel: bool
    """Whether all parts are written at the same time."""

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """Start the write of each part; the returned function finishes all, together or one after the other."""
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


ExportModel = Callable[[Path], None]
"""Writes the model as a Hugging Face folder."""
EXPORT_FOLDER = "model"
"""Subfolder of a checkpoint with the Hugging Face folder that `checkpoint.export` asks for."""


class CheckpointManager:
    """Writes the checkpoints of one run, prunes old ones and copies them to the mirror."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        snapshot: Callable[[], EngineSnapshot],
        *,
        mirror: CheckpointMirror | None,
        export: ExportModel | None,
        saved: RunState,
    ) -> None:
        """
        Args:
            run: the run, whose resolved configuration each checkpoint holds.
            folder: the run's folder.
            snapshot: takes a snapshot of all engines between two steps.
            mirror: a second location for checkpoints.
            export: writes the model into each checkpoint; None where `checkpoint.export` is off.
            saved: the state that the run starts from.
        """
        self.root = folder.checkpoints
        """Folder of all checkpoints."""
        self._section = run.checkpoint
        self._run_file = resolved_text(run)
        self._folder = folder
        self._snapshot = snapshot
        self._mirror = mirror
        self._export = export
        self._saved = saved
        self._identity = read_identity(folder.path)
        self._saver = CheckpointSaver(async_save=run.checkpoint.async_save)
        self._save_seconds = 0.0

    def is_saved(self, state: RunState) -> bool:
        """Whether the state is the one saved last, or the one that the run started from.

        A state saved in an evaluation is saved again after it.
        """
        saved = self._saved
        return (state.step, state.evaluation_pending) == (saved.step, saved.evaluation_pending)

    def save(self, state: RunState, then: Callable[[Path], None]) -> None:
        """Save the state between two steps.

        `then` is called in this thread with the checkpoint's folder, once the checkpoint is complete.
        """
        started = time.perf_counter()
        self._saver.wait()
        pending = checkpoint.begin(self.root, state.step)
        write = self._snapshot().begin_write(pending.folder, copied=self._section.async_save)
        final = checkpoint.folder_for_step(self.root, state.step)
        self._saver.save(partial(self._commit, pending, write, state), partial(then, final))
        self._save_seconds = time.perf_counter() - started
        self._saved = state

    def take_save_seconds(self) -> float:
        """Seconds that the last save blocked the loop; 0 once they were taken."""
        seconds, self._save_seconds = self._save_seconds, 0.0
        return seconds

    def latest(self) -> Path | None:
        """The newest intact checkpoint."""
        return checkpoint.latest(self.root)[0]

    def poll(self) -> None:
        """Complete a background save that has ended. Raises what the save raised."""
        self._saver.poll()

    def wait(self) -> None:
        """Wait for a background save. Raises what the save raised."""
        self._saver.wait()

    def close(self) -> None:
        """Let a background save finish, however the run ended."""
        self._saver.close()

    def _commit(
        self,
        pending: checkpoint.PendingCheckpoint,
        write: Callable[[], Mapping[str, FileChecksum]],
        state: RunState,
    ) -> None:
        def fill(folder: Path) -> Mapping[str, FileChecksum]:
            written = write()
            state.save(folder)
            if self._identity is not None:
                save_identity(self._identity, folder)
            (folder / self._folder.run_file.name).write_text(self._run_file, encoding="utf-8")
            if self._export is not None:
                self._export(folder / EXPORT_FOLDER)
            return written

        best = state.best.step if state.best else None
        checkpoint.commit(pending, fill, keep=self._section.keep, best=best)
        if self._mirror is not None:
            self._mirror.sync(self._folder)
