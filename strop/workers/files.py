"""Files that are written at once, appended to, or opened only if they are regular.

    NAME                           complete, old or new
    .NAME.HOST-PROCESS-RANDOM.tmp  incomplete; threads and processes that write the same NAME at once have one each

The temporary files of a killed process are removed by the first write of a later process into their folder.

A folder is exchanged in one operation where the kernel and the file system can, so that NAME never disappears.
Elsewhere two renames replace it, and `restore_folder` undoes the first one after a kill between them.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

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


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM)
"""Errors of kernels and file systems that cannot exchange two folders."""
_OLD_SUFFIX = ".old"


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A new temporary folder, which replaces `path` when the block ends without an exception.

    Its files are flushed to disk before. Where the file system cannot exchange two folders, one process at a time may
    write the same folder.
    """
    temporary = temporary_path(path)
    restore_folder(path)
    remove_leftovers(path.parent)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        fsync_tree(temporary)
        replace_folder(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(new: Path, path: Path) -> None:
    """Rename the complete folder `new` to `path`, on the same file system, and delete the folder that it replaces.

    A kill at any moment leaves the old folder or the new one at `path`, once `restore_folder` has been called.
    """
    if _rename_to_new(new, path):
        old = None
    elif _exchange(new, path):
        old = new
    else:
        old = _old_path(path)
        path.rename(old)
        new.rename(path)
    fsync_path(path.parent)
    if old is not None:
        shutil.rmtree(old)


def _rename_to_new(new: Path, path: Path) -> bool:
    """Rename a folder to a path where there is none; False if there is one."""
    try:
        if not path.exists():
            new.rename(path)
            return True
    except OSError:  # another writer has put its folder there meanwhile
        if not path.exists():
            raise
    return False


def restore_folder(path: Path) -> None:
    """Complete or undo a replacement of `path` that a kill has interrupted. Only the folder's writer may call it."""
    old = _old_path(path)
    if not old.is_dir():
        return
    if path.exists():
        shutil.rmtree(old)
    else:
        old.rename(path)
        fsync_path(path.parent)


def restore_folders(parent: Path, pattern: str) -> None:
    """Call `restore_folder` for each folder in `parent` whose name matches the glob pattern `pattern`."""
    for old in list(parent.glob(f".{pattern}{_OLD_SUFFIX}")):
        restore_folder(parent / old.name.removeprefix(".").removesuffix(_OLD_SUFFIX))


def fsync_tree(folder: Path) -> None:
    """Flush all files and folders below `folder` to disk, and `folder` itself."""
    for path in (*folder.rglob("*"), folder):
        fsync_path(path)


def _old_path(path: Path) -> Path:
    return path.with_name(f".{path.name}{_OLD_SUFFIX}")


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one operation of the file system; False where that is not possible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # not Linux, or an old C library
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


_CHUNK_BYTES = 1 << 16


class AppendFile:
    """A file of records. One that cannot be written completely is removed; nothing is held back in a buffer.

    Opening a file of lines removes an incomplete last line, which a killed process left.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._descriptor = self._file.fileno()
        complete = _end_of_complete_lines(path)
        if complete < os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, complete)

    def append(self, records: bytes) -> int:
        """Append records, all or none; returns the offset of the first one."""
        start = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(records)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise
        return start

    def sync(self) -> None:
        """Flush the file to disk, so that it survives a crash of the machine."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; every record is written already."""
        self._file.close()


def _end_of_complete_lines(path: Path) -> int:
    """Offset after the last newline."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


_SYSTEM_FOLDERS = tuple(map(Path, ("/proc", "/sys", "/dev")))
"""Folders whose files look regular, and are written by the kernel while they are read."""
_SHARED_MEMORY = Path("/dev/shm")


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
    path = path.resolve()
    return not path.is_relative_to(_SHARED_MEMORY) and any(map(path.is_relative_to, _SYSTEM_FOLDERS))


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "it is not a regular file", str(path))
