"""Versions of the weights as files in a folder that trainer and explorer share.

    sync/
      version-000010.safetensors
      .version-000011.safetensors.tmp    a version that is being written
      asked, answered, ...               signals between trainer and explorer, one number each

One process writes versions; any number of processes on any machine read them. The files outlive all of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from strop.errors import CheckpointError
from strop.sync.transport import FINAL_VERSION, SIGNALS, SignalName, VersionGone
from strop.workers.files import atomic_path, atomic_write

if TYPE_CHECKING:
    from torch import Tensor

_NAME = re.compile(r"version-(\d{6,})\.safetensors")


class FolderVersionStore:
    """Both ends of a transfer through a folder: a `WeightSender` and a `WeightReceiver`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = f"in {folder}"
        with _storage_errors(folder, "created"):
            folder.mkdir(parents=True, exist_ok=True)

    def versions(self) -> list[int]:
        """The versions in the folder, oldest first."""
        found = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def write(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write a version atomically. Raises `CheckpointError` if it cannot be written."""
        from strop.models.formats.safetensors_files import (
            save_tensors,  # imports torch, which the launcher of a run does not need
        )

        tensors = {name: tensor.detach().contiguous() for name, tensor in weights}
        with _storage_errors(self.folder, "written"), atomic_path(self._path(version)) as temporary:
            save_tensors(tensors, temporary)

    def delete(self, versions: Collection[int]) -> None:
        """Delete versions that no process needs any more."""
        with _storage_errors(self.folder, "written"):
            for version in versions:
                self._path(version).unlink()

    def read(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The weights of a version. Raises `VersionGone`, or `CheckpointError` for a damaged file."""
        path = self._path(version)
        with _storage_errors(path, "read"):
            try:
                opened = safe_open(path, framework="pt")
            except FileNotFoundError:
                raise VersionGone from None
            with opened as file:
                for name in file.keys():  # noqa: SIM118  (safe_open is not a dict)
                    yield name, file.get_tensor(name)

    def published(self, version: int) -> None:
        """None: the files are read by the explorer."""

    def clear(self) -> None:
        """Delete all versions and signals of an earlier run."""
        with _storage_errors(self.folder, "written"):
            for path in self.folder.iterdir():
                if _NAME.fullmatch(path.name) or path.name in SIGNALS:
                    path.unlink()

    def set_signal(self, signal: SignalName, number: int) -> None:
        """Set a signal to a number."""
        with _storage_errors(self.folder, "written"):
            atomic_write(self.folder / signal, f"{number}\n")

    def get_signal(self, signal: SignalName) -> int:
        """The number of a signal; 0 if it was never set."""
        try:
            return int((self.folder / signal).read_text())
        except FileNotFoundError:
            return 0

    def snapshot(self, step: int) -> None:
        """None: the folder outlives this process."""

    def announce_start(self) -> None:
        """Delete the final version that an earlier trainer has announced."""
        self.set_signal(FINAL_VERSION, 0)

    def finish(self, version: int) -> None:
        """Announce the final version."""
        self.set_signal(FINAL_VERSION, version)

    def final_version(self) -> int:
        """The final version; 0 while the trainer runs."""
        return self.get_signal(FINAL_VERSION)

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _path(self, version: int) -> Path:
        return self.folder / f"version-{version:06d}.safetensors"


@contextmanager
def _storage_errors(path: Path, action: str) -> Iterator[None]:
    """Turn errors of the disk into a `CheckpointError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"{path}, through which explorer and trainer share weights, cannot be {action}: {reason}. Both "
            "must be able to write to the folder, and its disk must have free space."
        ) from error
