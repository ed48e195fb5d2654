"""`checkpoint.mirror`: a copy of a run's checkpoints at any location that fsspec can reach.

    <mirror>/run.yaml  run.json  metrics.jsonl
             checkpoints/step-000010/...   complete once it has manifest.json, which is written last

It mirrors the run folder's checkpoints. A run whose own folder has no good checkpoint resumes from the mirror. What a
remote store refuses is repeated for about a minute; an error that a repetition cannot cure is reported at once.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from strop.config.schema.run import Run
from strop.config.semantic_diff import recorded_differences
from strop.data.sources.data_path import DataPath, first_line, resolve_path
from strop.errors import CheckpointError, StropError
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.sessions import SESSIONS_FILE as SESSIONS
from strop.training.checkpoints import checkpoint
from strop.workers.files import atomic_path, fsync_tree, replace_folder

T = TypeVar("T")
log = logging.getLogger("strop.run")
_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Pauses between the repetitions of what a remote store has refused."""
_LASTING = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, NotImplementedError)
"""Errors that a repetition does not cure."""


class CheckpointMirror:
    """The location of the copies. Raises DataError or MissingExtraError for an address that cannot be used."""

    def __init__(self, url: str) -> None:
        self._place = resolve_path(url)

    @classmethod
    def of(cls, run: Run) -> CheckpointMirror | None:
        """The run's mirror; None where `checkpoint.mirror` is not set."""
        return None if run.checkpoint.mirror is None else cls(run.checkpoint.mirror)

    def __str__(self) -> str:
        return self._place.display_path

    def prepare(self, run: Run) -> None:
        """Create the location, and check that it holds nothing that the run would overwrite.

        Raises CheckpointError where it holds another run's checkpoints, or cannot be written.
        """
        if self._place.filesystem.protocol[0] == "file" and self._is(run.folder_path):
            raise CheckpointError(
                f"checkpoint.mirror: {self} is the run's own folder; name another location."
            )
        if not self._repeat("created", self._create):
            return
        if run.resume != "auto":
            raise CheckpointError(
                f"checkpoint.mirror: {self} already holds checkpoints, and `resume: {run.resume}` does not "
                "continue their run. Move them away, or name another location."
            )
        with tempfile.TemporaryDirectory() as folder:
            self._repeat("read", lambda: self._get("run.yaml", Path(folder) / "run.yaml"))
            changed = recorded_differences(Path(folder) / "run.yaml", run)
        if changed:
            raise CheckpointError(
                f"checkpoint.mirror: {self} holds checkpoints of a run with a different configuration: "
                f"{'; '.join(changed)}. Name another location, or move them away."
            )

    def check(self) -> None:
        """Raise CheckpointError where a location on this machine cannot be created; creates nothing, and contacts no
        store."""
        if self._place.filesystem.protocol[0] == "file":
            self._repeat("created", partial(_require_folder, Path(self._place.path)))

    def fetch(self, folder: RunFolder) -> str | None:
        """Download the newest checkpoint and the run's records into a run folder without a good checkpoint.

        Returns a message for the user; None where the mirror has no checkpoint. Raises CheckpointError
        where the checkpoint cannot be read, or arrives damaged. The checkpoint appears last: without it the next start
        fetches everything again.
        """
        steps = self._repeat("read", self._steps)
        if not steps:
            return None
        name = steps[-1]
        temporary = folder.checkpoints / f".{name}.tmp"
        self._repeat("read", lambda: self._download(name, temporary))
        checkpoint.verify(temporary)
        for file in (folder.run_file.name, folder.metrics.name, SESSIONS):
            self._repeat("read", partial(self._get_if_there, file, folder.path / file))
        with reporting_write_errors(folder.checkpoints):
            fsync_tree(temporary)
            replace_folder(temporary, folder.checkpoints / name)
        return f"The run folder has no good checkpoint: {name} was fetched from {self}."

    def sync(self, folder: RunFolder) -> None:
        """Make the mirror equal to the run folder. Raises CheckpointError where it cannot be written."""
        self._repeat("written", lambda: self._upload(folder))

    def _create(self) -> list[str]:
        """Create the location, and return the names of its checkpoints."""
        self._place.filesystem.makedirs(self._place.path, exist_ok=True)
        return self._steps()

    def _download(self, name: str, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        source = self._child(f"checkpoints/{name}")
        for path in source.filesystem.find(source.path):
            inside = path.removeprefix(source.path).lstrip("/")
            self._get(f"checkpoints/{name}/{inside}", target / inside)

    def _upload(self, folder: RunFolder) -> None:
        kept = {path.name: path for path in folder.checkpoints.glob("step-*")}
        for file in (folder.run_file, folder.metrics, folder.path / SESSIONS):
            if file.is_file():
                self._put(file, file.name)
        for name, path in sorted(kept.items()):
            if self._manifest(name) != (path / checkpoint.MANIFEST_FILE).read_bytes():
                self._copy(path)
        for name in self._steps():
            if name not in kept:
                self._remove(name)

    def _copy(self, path: Path) -> None:
        self._remove(path.name)
        manifest = path / checkpoint.MANIFEST_FILE
        files = sorted(file for file in path.rglob("*") if file.is_file() and file != manifest)
        for file in (*files, manifest):
            self._put(file, f"checkpoints/{path.name}/{file.relative_to(path).as_posix()}")

    def _remove(self, name: str) -> None:
        """Delete the manifest first, so that an interrupted removal leaves no valid checkpoint."""
        folder = f"checkpoints/{name}"
        manifest, place = f"{folder}/{checkpoint.MANIFEST_FILE}", self._child(folder)
        if self._kind(folder) is None:
            return
        if self._kind(manifest) is not None:
            place.filesystem.rm(self._child(manifest).path)
        if self._kind(folder) is not None:
            place.filesystem.rm(place.path, recursive=True)

    def _steps(self) -> list[str]:
        """Names of the mirror's complete checkpoints, oldest first."""
        root = self._child("checkpoints")
        if self._kind("checkpoints") is None:
            return []
        names = (path.rstrip("/").rpartition("/")[2] for path in root.filesystem.ls(root.path, detail=False))
        return sorted(n for n in names if n.startswith("step-") and self._manifest(n) is not None)

    def _manifest(self, name: str) -> bytes | None:
        file = f"checkpoints/{name}/{checkpoint.MANIFEST_FILE}"
        is_there = self._kind(file) == "file"
        return bytes(self._place.filesystem.cat_file(self._child(file).path)) if is_there else None

    def _is(self, folder: Path) -> bool:
        return Path(self._place.path).resolve() == folder.resolve()

    def _child(self, name: str) -> DataPath:
        return self._place.child(name)

    def _put(self, file: Path, name: str) -> None:
        place = self._child(name)
        place.filesystem.makedirs(place.path.rpartition("/")[0], exist_ok=True)
        place.put(file)

    def _get(self, name: str, file: Path) -> None:
        place = self._child(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        place.filesystem.get_file(place.path, str(file))

    def _get_if_there(self, name: str, file: Path) -> None:
        if self._kind(name) == "file":
            with atomic_path(file) as temporary:
                self._get(name, temporary)

    def _kind(self, name: str) -> str | None:
        """`file`, `directory`, or None if nothing exists there."""
        place = self._child(name)
        try:
            return str(place.filesystem.info(place.path)["type"])
        except FileNotFoundError:
            return None

    def _repeat(self, what: str, call: Callable[[], T]) -> T:
        """Call until the store does not refuse. Raises CheckpointError for the last refusal."""
        files = self._place.filesystem
        pauses = () if files.protocol[0] == "file" else _PAUSES_SECONDS
        for pause in (*pauses, None):
            files.invalidate_cache()
            try:
                return call()
            except StropError:
                raise
            except Exception as error:  # each store's library has its own errors
                reason = getattr(error, "strerror", None) or first_line(error)
                if pause is None or isinstance(error, _LASTING):
                    tries = f" after {len(pauses) + 1} attempts" if pauses and pause is None else ""
                    raise CheckpointError(
                        f"checkpoint.mirror: {self} cannot be {what}{tries}: {reason}. The checkpoints in the run's "
                        "own folder are intact."
                    ) from error
                log.warning(
                    "checkpoint.mirror: %s cannot be %s: %s. Again in %g s.", self, what, reason, pause
                )
                time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


def _require_folder(path: Path) -> None:
    """Raise OSError where a folder cannot be created."""
    nearest = next(each for each in (path, *path.parents) if each.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(nearest))
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(nearest))
