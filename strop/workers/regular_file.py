"""Opening of files that someone else may have put there: regular files only, so that no read waits or is endless."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_SYSTEM_FOLDERS = tuple(map(Path, ("/proc", "/sys", "/dev")))
"""Folders whose files look regular, and are written by the kernel while they are read."""


def is_regular(path: Path) -> bool:
    """Whether a path leads to a file that `open_regular` opens."""
    return path.is_file() and not _is_system_file(path)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises `OSError` for anything but a regular file, at once: also for a FIFO.

    Files of the kernel, such as those of /proc, count as none, whichever links lead to them.
    """
    if _is_system_file(path):
        raise _not_regular(path)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_regular(path)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, limit: int = -1) -> bytes:
    """Content of a file, or its first `limit` bytes. Raises `OSError` as `open_regular` does."""
    with open_regular(path) as file:
        return file.read(limit)


def _is_system_file(path: Path) -> bool:
    return any(path.resolve().is_relative_to(folder) for folder in _SYSTEM_FOLDERS)


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", str(path))
