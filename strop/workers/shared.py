"""A file's content that is written once and read by many workers, wherever they are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, assert_never

import numpy as np

from strop.workers.ray_worker import import_ray
from strop.workers.start import Local, OnRay, Place

_MEMORY = Path("/dev/shm")
_OPEN_FILES = Path("/proc/self/fd")
"""Linux has it: there an open file can be read after it was deleted."""


class Shared(Protocol):
    """The content, as it is sent to a worker."""

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """A file with it; not to be written to."""
        ...


class SharedFile:
    """What the one who shares it holds; `close` lets the content go."""

    def __init__(self, write: Callable[[Path], None], size: int, place: Place) -> None:
        """`write` writes the content, of about `size` bytes, for workers that are in this `place`."""
        self._folder = TemporaryDirectory(prefix="strop-", dir=_folder(size))
        path = Path(self._folder.name) / "content"
        write(path)
        self._descriptor = os.open(path, os.O_RDONLY)
        if _OPEN_FILES.is_dir():
            # So nothing is left behind, however this process ends.
            self._folder.cleanup()
            path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        self.content: Shared
        match place:
            case Local():
                self.content = _OfThisMachine(path)
            case OnRay():
                self.content = _OnTheCluster.of(self._descriptor)
            case _:
                assert_never(place)

    def close(self) -> None:
        """Who has it open may read on."""
        os.close(self._descriptor)
        self._folder.cleanup()


@dataclass(frozen=True, slots=True)
class _OfThisMachine:
    path: Path

    @contextmanager
    def opened(self) -> Iterator[Path]:
        yield self.path


@dataclass(frozen=True, slots=True)
class _OnTheCluster:
    reference: Any
    """Ray brings the content to each node once."""

    @classmethod
    def of(cls, descriptor: int) -> _OnTheCluster:
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return cls(import_ray().put(np.fromfile(file, dtype=np.uint8)))

    @contextmanager
    def opened(self) -> Iterator[Path]:
        content = import_ray().get(self.reference)
        with TemporaryDirectory(prefix="strop-", dir=_folder(content.nbytes)) as folder:
            path = Path(folder) / "content"
            content.tofile(path)
            yield path


def _folder(size: int) -> Path | None:
    """In memory where there is room; else None, for where temporary files go."""
    return _MEMORY if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 2 * size else None
