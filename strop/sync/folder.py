"""Versions of the weights in a folder: each written beside, then renamed.

    sync/
      version-000010.safetensors
      .version-000011.tmp         being written
      asked, answered, ...        what the two sides say to each other, a number each

One process writes versions, any number on any machine read them; they outlive both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from strop.errors import CheckpointError
from strop.sync.versions import ENDED, WORDS, VersionGone, Word

_NAME = re.compile(r"version-(\d{6,})\.safetensors")


class FolderVersions:
    """Either end: an `Outbox` and an `Inbox`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = f"in {folder}"
        with _about(folder, "made"):
            folder.mkdir(parents=True, exist_ok=True)

    def all(self) -> list[int]:
        """Those that are there, oldest first."""
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Put a version there, whole or not at all. Raises `CheckpointError` where that cannot be."""
        beside = self.folder / f".version-{version:06d}.tmp"
        tensors = {name: tensor.detach().contiguous() for name, tensor in weights}
        with _about(self.folder, "written"):
            save_file(tensors, beside)
            _to_disk(beside)
            beside.replace(self._path(version))

    def delete(self, versions: Collection[int]) -> None:
        """Make room: nobody wants these any more."""
        with _about(self.folder, "written"):
            for version in versions:
                self._path(version).unlink()

    def read(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """Its weights, one after the other. Raises `VersionGone`, and `CheckpointError` for damaged ones."""
        path = self._path(version)
        with _about(path, "read"):
            if not path.exists():
                raise VersionGone
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (safe_open is no dict)
                    yield name, file.get_tensor(name)

    def clear(self) -> None:
        """Delete all that a run has left here, for one that starts anew."""
        with _about(self.folder, "written"):
            for path in self.folder.iterdir():
                if _NAME.fullmatch(path.name) or path.name in WORDS:
                    path.unlink()

    def say(self, word: Word, number: int) -> None:
        """Leave a number for the other side."""
        beside = self.folder / f".{word}.tmp"
        with _about(self.folder, "written"):
            beside.write_text(f"{number}\n")
            beside.replace(self.folder / word)

    def said(self, word: Word) -> int:
        """The number that was left under this word; 0 where none was."""
        try:
            return int((self.folder / word).read_text())
        except FileNotFoundError:
            return 0

    def snapshot(self, step: int) -> None:
        """Nothing: the folder outlives this process."""

    def begin(self) -> None:
        """Take back an earlier end."""
        self.say(ENDED, 0)

    def finish(self, version: int) -> None:
        """Versions stay in any case."""
        self.say(ENDED, version)

    def ended(self) -> int:
        """What was said of the end."""
        return self.said(ENDED)

    def close(self) -> None:
        """Nothing is open."""

    def _path(self, version: int) -> Path:
        return self.folder / f"version-{version:06d}.safetensors"


@contextmanager
def _about(path: Path, what: str) -> Iterator[None]:
    """Turns what the disk says into a `CheckpointError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{path}, through which explorer and trainer share weights, cannot be {what}: {reason}. Both "
            "must reach the folder, with room on its disk."
        ) from error


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
