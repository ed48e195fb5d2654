"""Atomic file writes: into a temporary file in the same folder, which then replaces the target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary file, `.NAME.tmp`, which replaces `path` when the block ends without an exception.

    `durable` flushes the file to disk first, so that its content also survives a crash of the machine.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        if durable:
            fsync_path(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def atomic_write(path: Path, content: str, *, durable: bool = False, mode: int = 0o666) -> None:
    """Write a text file as UTF-8: readers see the old content or the new one, never a part of it.

    `mode` is the permissions of the new file, less the umask.
    """
    with atomic_path(path, durable=durable) as temporary:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(content)


def fsync_path(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
