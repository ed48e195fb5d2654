"""`checkpoint.copy_to`: a second place for a run's checkpoints, wherever fsspec reaches.

    <copy_to>/run.yaml  run.json  metrics.jsonl
              checkpoints/step-000010/...   whole once its manifest.json is there, which is written last

It mirrors the run folder's checkpoints. A run whose own folder is empty goes on from there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strop.config.load import differences, load_run
from strop.config.schema import Run
from strop.data.files import Place, place_of
from strop.errors import CheckpointError
from strop.run.folder import RunFolder
from strop.run.records.sessions import FILE as SESSIONS
from strop.training import checkpoint


class SecondPlace:
    """Where copies go. Raises DataError or MissingExtraError for an address that cannot be used."""

    def __init__(self, url: str) -> None:
        self._place = place_of(url)

    @classmethod
    def of(cls, run: Run) -> SecondPlace | None:
        """The run's, where it names one."""
        return None if run.checkpoint.copy_to is None else cls(run.checkpoint.copy_to)

    def __str__(self) -> str:
        return self._place.shown

    def claim(self, run: Run) -> None:
        """Make the place, and see that nothing is in it that the run would spoil.

        Raises CheckpointError where it holds another run's checkpoints, or may not be written.
        """
        if self._place.files.protocol[0] == "file" and self._is(run.folder_path):
            raise CheckpointError(f"checkpoint.copy_to: {self} is the run's own folder; name another place.")
        with self._working("made"):
            self._place.files.makedirs(self._place.path, exist_ok=True)
            if not self._steps():
                return
        if run.resume != "auto":
            raise CheckpointError(
                f"checkpoint.copy_to: {self} holds checkpoints already, and `resume: {run.resume}` does not "
                "go on from the run they are of. Move them away, or name another place."
            )
        with tempfile.TemporaryDirectory() as folder:
            self._get("run.yaml", Path(folder) / "run.yaml")
            changed = differences(load_run(Path(folder) / "run.yaml").run, run)
        if changed:
            raise CheckpointError(
                f"checkpoint.copy_to: {self} holds checkpoints of a run with a different configuration: "
                f"{'; '.join(changed)}. Name another place, or move them away."
            )

    def fetch(self, folder: RunFolder) -> str | None:
        """Bring the newest checkpoint and the run's record into an empty run folder; what was done, in words.

        Raises CheckpointError where it cannot be read, or arrives damaged.
        """
        steps = self._steps()
        if not steps:
            return None
        name = steps[-1]
        beside = folder.checkpoints / f".{name}.tmp"
        shutil.rmtree(beside, ignore_errors=True)
        with self._working("read"):
            source = self._inside(f"checkpoints/{name}")
            for path in source.files.find(source.path):
                inside = path.removeprefix(source.path).lstrip("/")
                self._get(f"checkpoints/{name}/{inside}", beside / inside)
        checkpoint.verify(beside)
        beside.rename(folder.checkpoints / name)
        for file in (folder.run_file.name, folder.metrics.name, SESSIONS):
            if self._inside(file).kind() == "file":
                self._get(file, folder.path / file)
        return f"The run folder was empty: {name} was fetched from {self}."

    def mirror(self, folder: RunFolder) -> None:
        """Bring it to what the run folder holds. Raises CheckpointError where it cannot be written."""
        kept = {path.name: path for path in folder.checkpoints.glob("step-*")}
        with self._working("written"):
            for file in (folder.run_file, folder.metrics, folder.path / SESSIONS):
                if file.is_file():
                    self._put(file, file.name)
            for name, path in sorted(kept.items()):
                if self._manifest(name) != (path / checkpoint.MANIFEST).read_bytes():
                    self._copy(path)
            for name in self._steps():
                if name not in kept:
                    self._remove(name)

    def _copy(self, path: Path) -> None:
        self._remove(path.name)
        manifest = path / checkpoint.MANIFEST
        files = sorted(file for file in path.rglob("*") if file.is_file() and file != manifest)
        for file in (*files, manifest):
            self._put(file, f"checkpoints/{path.name}/{file.relative_to(path).as_posix()}")

    def _remove(self, name: str) -> None:
        """The manifest first, so that what is left of a broken removal is no checkpoint."""
        place = self._inside(f"checkpoints/{name}")
        if place.kind() is None:
            return
        manifest = place.inside(checkpoint.MANIFEST)
        if manifest.kind() is not None:
            place.files.rm(manifest.path)
        if place.kind() is not None:
            place.files.rm(place.path, recursive=True)

    def _steps(self) -> list[str]:
        """The whole checkpoints there, oldest first."""
        root = self._inside("checkpoints")
        if root.kind() is None:
            return []
        names = (path.rstrip("/").rpartition("/")[2] for path in root.files.ls(root.path, detail=False))
        return sorted(n for n in names if n.startswith("step-") and self._manifest(n) is not None)

    def _manifest(self, name: str) -> bytes | None:
        place = self._inside(f"checkpoints/{name}/{checkpoint.MANIFEST}")
        return bytes(place.files.cat_file(place.path)) if place.kind() == "file" else None

    def _is(self, folder: Path) -> bool:
        return Path(self._place.path).resolve() == folder.resolve()

    def _inside(self, name: str) -> Place:
        return self._place.inside(name)

    def _put(self, file: Path, name: str) -> None:
        place = self._inside(name)
        place.files.makedirs(place.path.rpartition("/")[0], exist_ok=True)
        place.files.put_file(str(file), place.path)

    def _get(self, name: str, file: Path) -> None:
        place = self._inside(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        place.files.get_file(place.path, str(file))

    @contextmanager
    def _working(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointError(
                f"checkpoint.copy_to: {self} cannot be {what}: {error.strerror or error}. The checkpoints in "
                "the run's own folder are untouched."
            ) from error
