"""Resource limits of the calling process, which its child processes inherit."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Limits that a process applies to itself; None leaves a resource unlimited."""

    memory_bytes: int | None = None
    """Maximum private memory of one process (`RLIMIT_DATA`; enforced on Linux only)."""
    file_bytes: int | None = None
    """Maximum size of a file that a process writes."""
    processes: int | None = None
    """Maximum number of processes and threads of this user above the number at the time of `apply`; the
    kernel exempts root."""

    def apply(self) -> None:
        """Apply the limits to this process. A hard limit that is already lower stays; no core is dumped."""
        try:
            import resource
        except ImportError:  # no POSIX system
            return
        wanted = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: self.memory_bytes,
            resource.RLIMIT_FSIZE: self.file_bytes,
            resource.RLIMIT_NPROC: None if self.processes is None else _user_threads() + self.processes,
        }
        for kind, limit in wanted.items():
            if limit is not None:
                _, hard = resource.getrlimit(kind)
                limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
                resource.setrlimit(kind, (limit, limit))


def _user_threads() -> int:
    """Number of threads of this user, in all processes that `/proc` shows; 0 on a system without it."""
    user, count = os.getuid(), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            if folder.stat().st_uid == user:
                count += sum(1 for _ in (folder / "task").iterdir())
    return count
