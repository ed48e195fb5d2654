"""Removal of the folders in which programs ran, whatever a program has left there."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

log = logging.getLogger("strop.sandbox")
_ATTEMPTS = 3
_PAUSE_SECONDS = 0.05
_MAX_SECONDS = 10.0
"""Maximum time of one attempt; the rest of a folder with very many files is removed after the next program."""


def remove_folder(path: str, max_seconds: float = _MAX_SECONDS) -> None:
    """Remove a folder and all below it, however deep it is. Raises OSError, and TimeoutError after `max_seconds`.

    One folder at a time is open, and no path is longer than a name. Nothing else may move the folders meanwhile.
    """
    deadline = time.monotonic() + max_seconds
    current = _open(path)
    names: list[str] = []
    try:
        pending = [_remove_files(current, deadline)]
        while True:
            if pending[-1]:
                names.append(pending[-1].pop())
                os.chmod(names[-1], 0o700, dir_fd=current)
                current = _replaced(current, names[-1])
                pending.append(_remove_files(current, deadline))
            elif names:
                current = _replaced(current, "..")
                os.rmdir(names.pop(), dir_fd=current)
                pending.pop()
            else:
                break
    finally:
        os.close(current)
    Path(path).rmdir()


def _open(name: str, folder: int | None = None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)


def _replaced(folder: int, name: str) -> int:
    """Open a folder of an open one, which is closed."""
    opened = _open(name, folder)
    os.close(folder)
    return opened


def _remove_files(folder: int, deadline: float) -> list[str]:
    """Remove the files of an open folder; the names of its folders."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if time.monotonic() > deadline:
                raise TimeoutError("too many files")
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders


class FolderRemover:
    """Removes folders, and tries again after the next program what could not be removed. Any thread may call."""

    def __init__(self) -> None:
        self._left: set[str] = set()
        self._lock = threading.Lock()

    def remove(self, folder: str) -> None:
        """Remove a folder, and an earlier one that remains. A folder that remains is named once in the log."""
        with self._lock:
            earlier = [self._left.pop()] if self._left else []
        for path in (folder, *earlier):
            error = _tried(path)
            if error is None:
                continue
            with self._lock:
                self._left.add(path)
            if path == folder:
                log.warning(
                    "The folder %s of a program is not removed yet (%s); this is tried again after later programs.",
                    path,
                    error,
                )


def _tried(path: str) -> OSError | None:
    """The last error, if the folder remains after some attempts."""
    failure: OSError | None = None
    for attempt in range(_ATTEMPTS):
        try:
            remove_folder(path)
        except TimeoutError as error:
            return error
        except OSError as error:  # a process that was killed may still write
            failure = error
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_PAUSE_SECONDS)
        else:
            return None
    return failure
