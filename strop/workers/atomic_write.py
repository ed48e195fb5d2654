"""Atomic file writes: into a temporary file in the same folder, which then replaces the target."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""Errors of file systems that cannot flush a folder's entries, such as some network file systems."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary file, `.NAME.tmp`, which replaces `path` when the block ends without an exception.

    The file is flushed to disk before the rename, and the folder after it, so that a crash of the machine leaves
    the old content or the new one.
    """
    temporary = temporary_path(path)
    try:
        yield temporary
        fsync_path(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


def temporary_path(path: Path) -> Path:
    """The temporary file or folder next to `path`, before it is renamed to `path`."""
    return path.with_name(f".{path.name}.tmp")


def atomic_write(path: Path, content: str, *, mode: int = 0o666) -> None:
    """Write a text file as UTF-8: readers see the old content or the new one, never a part of it.

    `mode` is the permissions of the new file, less the umask.
    """
    with atomic_path(path) as temporary:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(content)


def fsync_path(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
