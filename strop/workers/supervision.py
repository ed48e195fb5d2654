"""Supervision of a role by its parent process, so that no descendant of the role outlives it.

The supervisor forks the role and waits. When the role ends, or the supervisor gets SIGTERM, it kills all remaining
descendants and ends in the same way as the role. On Linux, descendants that start a session of their own or
whose parent has ended stay children of the supervisor (`PR_SET_CHILD_SUBREAPER`), and the supervisor gets
SIGTERM when the thread that started it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from strop.workers.child_process import ProcessLimits

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD}


def run_supervised(role: Callable[[], None]) -> NoReturn:
    """Run a role in a fork of this process, which must have one thread; never returns."""
    parent = os.getpid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(
        signal.SIGCHLD, lambda number, frame: None
    )  # else it may be discarded instead of waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    pid = os.fork()
    if pid == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        role()
        sys.exit(0)
    _end_like(_supervise(pid))


def _supervise(role: int) -> int:
    """Wait for the role's end or for SIGTERM, and kill all descendants. Returns the role's exit code."""
    while True:
        received = signal.sigwait(_SIGNALS)
        if received == signal.SIGTERM:
            _kill_descendants()
            return -signal.SIGKILL
        for pid, code in _ended_children():
            if pid == role:
                _kill_descendants()
                return code


def _ended_children() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def _kill_descendants() -> None:
    """Kill all children until there are none; the children of a killed process become children of this one."""
    if not _PROC.is_dir():  # macOS: the process group is all that can be found
        os.killpg(0, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in _children():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    """Ids of this process's children, from `/proc`."""
    own, children = str(os.getpid()), []
    for file in _PROC.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            _, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if parent == own:
                children.append(int(file.parent.name))
    return children


def _end_like(code: int) -> NoReturn:
    """End this process with an exit code, or by a signal for a negative code."""
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        ProcessLimits().apply()  # the role has dumped its core if it may
        os.kill(os.getpid(), -code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os._exit(code if code >= 0 else 128 - code)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
