"""Atomic folder writes: into a temporary folder next to the target, which then replaces the target.

    NAME                             complete, old or new
    .NAME.HOST-PROCESS-RANDOM.tmp    incomplete, or the old folder after an exchange; removed by a later write
    .NAME.old                        the old folder during two renames; put back if a kill left no NAME

Where the kernel and the file system can exchange two folders in one operation, NAME never disappears. Elsewhere two
renames replace it, and `restore_folder` undoes the first one after a kill between them.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strop.workers.atomic_write import fsync_path, remove_leftovers, temporary_path

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
