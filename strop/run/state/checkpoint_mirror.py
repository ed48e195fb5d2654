"""`checkpoint.mirror`: a copy of a run's checkpoints at any location that fsspec can reach.

    <mirror>/run.yaml  run.json  metrics.jsonl
             checkpoints/step-000010/...   complete once it has manifest.json, which is written last

It mirrors the run folder's checkpoints. A run whose own folder has no good checkpoint resumes from the mirror.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strop.config.resume_compatibility import recorded_differences
from strop.config.schema import Run
from strop.data.sources.data_path import DataPath, resolve_path
from strop.errors import CheckpointError
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.sessions import SESSIONS_FILE as SESSIONS
from strop.training.checkpoints import checkpoint
from strop.workers.atomic_folder import fsync_tree, replace_folder


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
        with self._reporting_errors("created"):
            self._place.filesystem.makedirs(self._place.path, exist_ok=True)
            if not self._steps():
                return
        if run.resume != "auto":
            raise CheckpointError(
                f"checkpoint.mirror: {self} already holds checkpoints, and `resume: {run.resume}` does not "
                "continue their run. Move them away, or name another location."
            )
        with tempfile.TemporaryDirectory() as folder:
            self._get("run.yaml", Path(folder) / "run.yaml")
            changed = recorded_differences(Path(folder) / "run.yaml", run)
        if changed:
            raise CheckpointError(
                f"checkpoint.mirror: {self} holds checkpoints of a run with a different configuration: "
                f"{'; '.join(changed)}. Name another location, or move them away."
            )

    def fetch(self, folder: RunFolder) -> str | None:
        """Download the newest checkpoint and the run's records into a run folder without a good checkpoint.

        Returns a message for the user; None where the mirror has no checkpoint. Raises CheckpointError
        where the checkpoint cannot be read, or arrives damaged.
        """
        steps = self._steps()
        if not steps:
            return None
        name = steps[-1]
        temporary = folder.checkpoints / f".{name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        with self._reporting_errors("read"):
            source = self._child(f"checkpoints/{name}")
            for path in source.filesystem.find(source.path):
                inside = path.removeprefix(source.path).lstrip("/")
                self._get(f"checkpoints/{name}/{inside}", temporary / inside)
        checkpoint.verify(temporary)
        with reporting_write_errors(folder.checkpoints):
            fsync_tree(temporary)
            replace_folder(temporary, folder.checkpoints / name)
        for file in (folder.run_file.name, folder.metrics.name, SESSIONS):
            if self._child(file).kind() == "file":
                self._get(file, folder.path / file)
        return f"The run folder has no good checkpoint: {name} was fetched from {self}."

    def sync(self, folder: RunFolder) -> None:
        """Make the mirror equal to the run folder. Raises CheckpointError where it cannot be written."""
        kept = {path.name: path for path in folder.checkpoints.glob("step-*")}
        with self._reporting_errors("written"):
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
        place = self._child(f"checkpoints/{name}")
        if place.kind() is None:
            return
        manifest = place.child(checkpoint.MANIFEST_FILE)
        if manifest.kind() is not None:
            place.filesystem.rm(manifest.path)
        if place.kind() is not None:
            place.filesystem.rm(place.path, recursive=True)

    def _steps(self) -> list[str]:
        """Names of the mirror's complete checkpoints, oldest first."""
        root = self._child("checkpoints")
        if root.kind() is None:
            return []
        names = (path.rstrip("/").rpartition("/")[2] for path in root.filesystem.ls(root.path, detail=False))
        return sorted(n for n in names if n.startswith("step-") and self._manifest(n) is not None)

    def _manifest(self, name: str) -> bytes | None:
        place = self._child(f"checkpoints/{name}/{checkpoint.MANIFEST_FILE}")
        return bytes(place.filesystem.cat_file(place.path)) if place.kind() == "file" else None

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

    @contextmanager
    def _reporting_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"checkpoint.mirror: {self} cannot be {what}: {error.strerror or error}. The checkpoints in "
                "the run's own folder are intact."
            ) from error
