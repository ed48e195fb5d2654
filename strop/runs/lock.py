"""Locks of a run folder: one trainer and one explorer at a time write into it.

    .lock            held by a run, or by a separate trainer
    .explorer.lock   held by a separate explorer; a run that starts both processes holds both locks
    .actors.lock     shared by the roles of a run that are Ray actors

A lock is an advisory lock of the operating system (`flock`), which ends with the processes that hold it, however
they end. The file names the holder for the message of a start that is refused. Processes that a run starts on
this machine inherit the lock: after a kill of the run it is held until they have saved their states. Ray actors, on
any machine, hold a lock of their own, which each start waits for.

The holder of a lock is also who gets the request to stop a run (`request_stop`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from strop.errors import RunFolderError
from strop.runs.folder import (
    ACTORS_LOCK_FILE,
    EXPLORER_LOCK_FILE,
    LOCK_FILE,
    RunFolder,
    reporting_write_errors,
)
from strop.runs.sessions import read_sessions
from strop.workers.files import is_regular, open_regular
from strop.workers.json_text import read_object
from strop.workers.process_birth import is_running, process_birth, signal_process

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks; the holder that the file names decides then."""
_ENDING_TIMEOUT_SECONDS = 60.0
"""Longest wait for the processes of a killed run to save their states, and for its actors to end."""
_POLL_SECONDS = 0.1
_MAX_BYTES = 4096
"""Longest content of a lock that names its holder."""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that a lock file names."""

    host: str
    pid: int
    since: str
    birth: str = ""
    """Start of the process; empty in the lock of an earlier version, and on systems without /proc."""

    @classmethod
    def current(cls) -> LockHolder:
        """This process."""
        now = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        return cls(socket.gethostname(), os.getpid(), now, process_birth(os.getpid()))

    @classmethod
    def read(cls, path: Path) -> LockHolder | None:
        """The holder that a file names; None where it names none."""
        try:
            found = cls(**read_object(path, max_bytes=_MAX_BYTES))
        except (OSError, ValueError, TypeError):
            return None
        return found if isinstance(found.pid, int) and isinstance(found.birth, str) else None

    @property
    def has_ended(self) -> bool:
        """Whether it was a process of this host, and has ended."""
        return self.host == socket.gethostname() and not is_running(self.pid, self.birth)


_UNKNOWN = LockHolder("an unknown host", 0, "an unknown time")
"""Holder of a locked file that names none: it has just been locked, or is being deleted."""


def current_holder(path: Path) -> LockHolder | None:
    """The process that a lock's file names, if it has not ended and a process has the lock; else None.

    Of a process of another host the file is believed: not every file system shares locks between hosts.
    """
    holder = LockHolder.read(path)
    if holder is None or holder.host != socket.gethostname():
        return holder
    if holder.has_ended:
        return None
    try:
        with open_regular(path) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return holder
    except OSError as error:
        return holder if error.errno in _NO_LOCKS else None
    return None


@contextmanager
def lock_run(
    folder: RunFolder, *, mode: str, is_distributed: bool, permissions: int = 0o777
) -> Iterator[Sequence[int]]:
    """Hold the locks of a run in `mode`, in a folder that is created with `permissions`.

    Yields the file descriptors of the locks, for child processes to inherit.

    Raises `RunFolderError` where another process holds one, or the folder cannot be written.
    """
    created = [path for path in (folder.path, *folder.path.parents) if not path.exists()]
    folder.create(permissions)
    with ExitStack() as stack:
        stack.callback(_remove_empty, created)
        descriptors = [
            stack.enter_context(_locked(folder, name)) for name in _lock_files(mode, is_distributed)
        ]
        _wait_for_actors(folder)
        yield descriptors


def require_unlocked(folder: RunFolder, *, mode: str, is_distributed: bool) -> None:
    """Raise `RunFolderError` where a running process holds a lock that a run in `mode` needs; takes none."""
    for name in _lock_files(mode, is_distributed):
        path = folder.path / name
        holder = LockHolder.read(path)
        if holder is None or holder.has_ended:
            continue
        with reporting_write_errors(path), path.open("r+") as file:
            if (holder := _holder_or_lock(file.fileno(), path)) is not None:
                raise RunFolderError(_in_use(folder, holder))


def _lock_files(mode: str, is_distributed: bool) -> list[str]:
    names = [EXPLORER_LOCK_FILE] if mode == "explore" else [LOCK_FILE]
    return [*names, EXPLORER_LOCK_FILE] if mode == "both" and is_distributed else names


@contextmanager
def lock_actor(folder: Path) -> Iterator[None]:
    """Hold the lock of a Ray actor that writes into a run folder; actors of one run hold it at the same time.

    Raises `RunFolderError` where the file cannot be opened.
    """
    path = folder / ACTORS_LOCK_FILE
    with reporting_write_errors(path):
        file = path.open("a+")
    with file:
        lock_file(file.fileno(), fcntl.LOCK_SH)
        yield


def _wait_for_actors(folder: RunFolder) -> None:
    """Wait until the actors of earlier starts have ended. Raises `RunFolderError` for those that do not."""
    path = folder.path / ACTORS_LOCK_FILE
    if not path.exists():
        return
    deadline = time.monotonic() + _ENDING_TIMEOUT_SECONDS
    with reporting_write_errors(path), path.open("a+") as file:
        while not lock_file(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() > deadline:
                raise RunFolderError(
                    f"The run folder {folder.path} is in use by Ray actors of an earlier start, whose own process has "
                    "ended. Ray ends them; if their node does not respond, end its processes (`ray stop`), or write "
                    "another `name`."
                )
            time.sleep(_POLL_SECONDS)


def lock_file(descriptor: int, operation: int) -> bool:
    """Lock an open file; False where another process holds it. A file system without locks locks nothing."""
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


@contextmanager
def _locked(folder: RunFolder, name: str) -> Iterator[int]:
    path = folder.path / name
    descriptor = _acquire(folder, path)
    try:
        content = json.dumps(asdict(LockHolder.current())) + "\n"
        with reporting_write_errors(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content.encode(), 0)
        yield descriptor
    finally:
        # The lock ends with its last descriptor, whether or not the file can be deleted.
        with suppress(OSError):
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                path.unlink()
        os.close(descriptor)


def _acquire(folder: RunFolder, path: Path) -> int:
    deadline = time.monotonic() + _ENDING_TIMEOUT_SECONDS
    while True:
        with reporting_write_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            holder = _holder_or_lock(descriptor, path)
            if holder is None and _is_file_of(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if holder is not None:
            if not (holder == _UNKNOWN or holder.has_ended) or time.monotonic() > deadline:
                raise RunFolderError(_in_use(folder, holder))
            time.sleep(_POLL_SECONDS)


def _holder_or_lock(descriptor: int, path: Path) -> LockHolder | None:
    """Lock the file; returns the holder where another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return LockHolder.read(path) or _UNKNOWN
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        holder = LockHolder.read(path)
        return None if holder is None or holder.has_ended else holder
    return None


def _is_file_of(path: Path, descriptor: int) -> bool:
    """Whether the locked file still has its name: the holder before may have deleted it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders that were created for the lock and stayed empty, because the run could not start."""
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def _in_use(folder: RunFolder, holder: LockHolder) -> str:
    ended = ", which has ended, but whose child processes still run" if holder.has_ended else ""
    return (
        f"The run folder {folder.path} is in use by process {holder.pid} on {holder.host}, since {holder.since}"
        f"{ended}. Two runs in one folder would delete each other's files. Wait for the end of that run, stop it, or "
        "write another `name`."
    )


def request_stop(folder: RunFolder) -> list[int]:
    """Send SIGTERM to the processes that hold the folder's locks; each saves its state and stops. Returns their ids.

    A process that a lock's file names gets a signal only if it holds that lock: a file without a lock is left over, and
    its number may be that of another process by now.

    Raises `RunFolderError` where no process of this machine holds one.
    """
    locks = {
        path: current_holder(path) for path in (folder.path / LOCK_FILE, folder.path / EXPLORER_LOCK_FILE)
    }
    here = socket.gethostname()
    stopped, elsewhere = set(), set()
    for path, holder in locks.items():
        if holder is None or holder.pid in stopped:
            continue
        if holder.host != here:
            elsewhere.add(holder.host)
            continue
        try:
            if signal_process(holder.pid, holder.birth, signal.SIGTERM, holding=path):
                stopped.add(holder.pid)
        except PermissionError as error:
            raise RunFolderError(
                f"The run in {folder.path} is process {holder.pid}, which belongs to another user. Stop it as that "
                "user."
            ) from error
    if not stopped:
        where = (
            f"It runs on {', '.join(sorted(elsewhere))}: stop it there"
            if elsewhere
            else "It has ended already"
        )
        raise RunFolderError(f"No process of this machine writes into {folder.path}. {where}.")
    return sorted(stopped)


def resume_arguments(folder: RunFolder) -> list[str]:
    """Arguments of `strop` that continue a run from its last checkpoint, by the resolved run file in its folder.

    Raises `RunFolderError` where the folder has none.
    """
    if not is_regular(folder.run_file):
        raise RunFolderError(
            f"{folder.path} has no run.yaml, so the run cannot be continued from its folder."
        )
    here = bool(sessions := read_sessions(folder.path)) and "--here" in shlex.split(sessions[-1]["command"])
    return ["train", str(folder.run_file), *(["--here"] if here else [])]
