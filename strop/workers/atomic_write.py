"""Atomic file writes: into a temporary file in the same folder, which then replaces the target.

    NAME                           complete, old or new
    .NAME.HOST-PROCESS-RANDOM.tmp  incomplete; threads and processes that write the same NAME at once have one each

The temporary files of a killed process are removed by the first write of a later process into their folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from strop.workers.process_birth import is_running

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""Errors of file systems that cannot flush a folder's entries, such as some network file systems."""
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{6})-([0-9]+)-[0-9a-f]{8}\.tmp", re.DOTALL)
_MAX_NAME = 200
"""Characters of a target's name in that of its temporary file; a file system has a limit."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """The path of a new temporary file, which replaces `path` when the block ends without an exception.

    The file is flushed to disk before the rename, and the folder after it, so that a crash of the machine leaves
    the old content or the new one. Of several writers at once each replaces the whole file; the last one stays.
    """
    _remove_leftovers_once(path.parent, os.getpid())
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
    """A path for a temporary file or folder next to `path`, which no other thread or process has."""
    return path.with_name(f".{path.name[:_MAX_NAME]}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders in `folder` that belong to processes of this host that have ended."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.name.endswith(".tmp")]
    except OSError:  # the write itself says what is wrong with the folder
        return
    for entry in entries:
        found = _TEMPORARY.fullmatch(entry.name)
        if found and found[1] == _host() and not is_running(int(found[2])):
            with suppress(OSError):  # another process has removed it, or it belongs to another user
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    Path(entry.path).unlink()


@cache
def _remove_leftovers_once(folder: Path, process: int) -> None:
    """Remove leftovers the first time that a process writes into a folder; a later listing would find none."""
    remove_leftovers(folder)


@cache
def _host() -> str:
    """Digest of this host's name: an id of a process says nothing on another host that shares the folder."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def atomic_write(path: Path, content: str, *, mode: int = 0o666) -> None:
    """Write a text file as UTF-8: readers see the old content or the new one, never a part of it.

    `mode` is the permissions of the new file, less the umask.
    """
    with atomic_path(path) as temporary:
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
