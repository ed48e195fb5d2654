"""File content that is written once and read by many workers, on this machine or through Ray."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, assert_never

import numpy as np

from strop.workers.ray_runtime import import_ray
from strop.workers.start import LocalPlacement, RayPlacement, WorkerPlacement

_SHARED_MEMORY = Path("/dev/shm")
_OPEN_FILES = Path("/proc/self/fd")
"""Exists on Linux, where an open file can still be read after its deletion."""


class SharedFileHandle(Protocol):
    """A reference to the content, which can be sent to a worker."""

    def open(self) -> AbstractContextManager[Path]:
        """The path of a file with the content, which must not be written to."""
        ...


class SharedFile:
    """The owner of the content. After `close`, only files that are already open can be read."""

    def __init__(self, write: Callable[[Path], None], size: int, placement: WorkerPlacement) -> None:
        """`write` writes the content, of about `size` bytes; `placement` is that of its readers."""
        self._folder = TemporaryDirectory(prefix="strop-", dir=temporary_parent(size))
        path = Path(self._folder.name) / "content"
        write(path)
        self._descriptor = os.open(path, os.O_RDONLY)
        if _OPEN_FILES.is_dir():
            # Delete the folder now, so that nothing is left behind if this process is killed.
            self._folder.cleanup()
            path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        self.handle: SharedFileHandle
        match placement:
            case LocalPlacement():
                self.handle = _LocalFileHandle(path)
            case RayPlacement():
                self.handle = _RayObjectHandle.of(self._descriptor)
            case _:
                assert_never(placement)

    def close(self) -> None:
        """Release the content."""
        os.close(self._descriptor)
        self._folder.cleanup()


@dataclass(frozen=True, slots=True)
class _LocalFileHandle:
    path: Path

    @contextmanager
    def open(self) -> Iterator[Path]:
        yield self.path


@dataclass(frozen=True, slots=True)
class _RayObjectHandle:
    reference: Any
    """A Ray object; Ray copies it to each node once."""

    @classmethod
    def of(cls, descriptor: int) -> _RayObjectHandle:
        with os.fdopen(os.dup(descriptor), "rb") as file:
            return cls(import_ray().put(np.fromfile(file, dtype=np.uint8)))

    @contextmanager
    def open(self) -> Iterator[Path]:
        content = import_ray().get(self.reference)
        with TemporaryDirectory(prefix="strop-", dir=temporary_parent(content.nbytes)) as folder:
            path = Path(folder) / "content"
            content.tofile(path)
            yield path


def temporary_parent(size: int) -> Path | None:
    """Shared memory if twice `size` is free there; otherwise None, for the default temporary folder."""
    return (
        _SHARED_MEMORY
        if _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 2 * size
        else None
    )
