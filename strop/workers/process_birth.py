"""Identity of a process: its id, and its birth, which distinguishes it from a later process of the same id."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")


def process_birth(pid: int) -> str:
    """Boot of the machine, and start of a process in clock ticks since then.

    Empty for a process that has ended, and on systems without /proc, where only the id identifies a process.
    """
    stat = _stat(pid)
    if not stat:
        return ""
    boot = ""
    with suppress(OSError):  # a sandbox may hide it
        boot = _BOOT.read_text(encoding="utf-8").strip()
    return f"{boot} {stat[19]}".lstrip()


def is_running(pid: int, birth: str = "") -> bool:
    """Whether a process of this machine runs; a killed process that its parent has not awaited does not.

    With a birth, a later process of the same id is not that process.
    """
    if pid <= 0:  # a process group
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        pass
    stat = _stat(pid)
    return stat[:1] != ["Z"] and (not birth or not stat or process_birth(pid) == birth)


def signal_process(pid: int, birth: str, number: signal.Signals, *, holding: Path | None = None) -> bool:
    """Send a signal to a process; returns whether it ran.

    A process of the same id with another birth gets none, nor one that does not have the file `holding` open: both
    are read from files that anyone may have written. Raises `PermissionError` for a process of another user.
    """
    with ExitStack() as stack:
        descriptor = None
        if hasattr(os, "pidfd_open"):
            try:
                descriptor = os.pidfd_open(pid)  # it stays that process's, also if the process ends now
            except (ProcessLookupError, OverflowError, ValueError):
                return False
            except OSError:  # a kernel without it
                pass
            else:
                stack.callback(os.close, descriptor)
        if not is_running(pid, birth) or (holding is not None and not _has_open(pid, holding)):
            return False
        try:
            if descriptor is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        return True


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has a file open; True on systems without /proc."""
    descriptors = Path(f"/proc/{pid}/fd")
    if not Path("/proc/self/fd").is_dir():
        return True
    try:
        file = path.stat()
        opened = [*descriptors.iterdir()]
    except FileNotFoundError:
        return False
    for each in opened:
        with suppress(FileNotFoundError):  # closed since
            if os.path.samestat(each.stat(), file):
                return True
    return False


def _stat(pid: int) -> list[str]:
    """Fields of a process's status, from its state on; none where they cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
