"""Limits of a recorded script: time, processes, memory and files of bash and of all that it starts."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MAX_PROCESSES = 256
_MAX_MEMORY_BYTES = 1_000_000_000
_MAX_FILE_BYTES = 16_000_000
_MAX_FILES, _MAX_TOTAL_BYTES = 10_000, 64_000_000
_POLL_SECONDS = 0.03
_IDLE_SECONDS = 0.5
"""Time without any work of the background jobs, after the script's end, at which they are ended."""
_WAITING_SECONDS = 2.0
"""Time without any work, before the script's end, at which it is ended, because it waits for its background jobs."""
_MAX_BACKGROUND_SECONDS = 5.0
"""Time after the script's end at which background jobs are ended in any case."""


@dataclass(frozen=True, slots=True)
class _Usage:
    """Usage of a group of processes."""

    switches: Mapping[int, int]
    """Number of times that each living process, by its id, has given up a processor so far."""
    memory_bytes: int
    is_waiting: bool
    """Whether each process waited at the moment at which it was looked at."""

    def is_idle_since(self, before: _Usage | None) -> bool:
        """Whether no process has run since an earlier look: one that waits at both looks, and was not switched off in
        between, has not run. A single look is not enough, because it sees one process after the other."""
        return before is not None and self.is_waiting and self.switches == before.switches


def limit_process(timeout_seconds: float) -> None:
    """Limit this process and each process that it will start."""
    for kind, limit in (
        (resource.RLIMIT_AS, _MAX_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(timeout_seconds) + 1),
    ):
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def run_to_end(process: subprocess.Popen[bytes], scratch: Path, timeout_seconds: float) -> str:
    """Wait for a process that leads its group, and for its background jobs, and end all that is left of the group.

    Returns the limit at which the script was stopped, as the end of a sentence; empty if it ended on its own.
    """
    now = time.monotonic()
    deadline, ended, idle_since = now + timeout_seconds, None, None
    stopped, before = "", None
    try:
        while not stopped:
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            if ended is None and os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                ended = now
            usage = _usage(process.pid)
            idle_since = (idle_since or now) if usage.is_idle_since(before) else None
            before = usage
            if ended is not None and (
                not usage.switches
                or now - ended > _MAX_BACKGROUND_SECONDS
                or (idle_since is not None and now - max(ended, idle_since) > _IDLE_SECONDS)
            ):
                break
            stopped = _exceeded(usage, scratch)
            if not stopped and idle_since is not None and now - idle_since > _WAITING_SECONDS:
                stopped = "when all that was left of it waited"
            if now > deadline:
                stopped = f"after {timeout_seconds:.0f} seconds"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # until `wait`, the number is not given away
        process.wait()
    if process.returncode == -signal.SIGXFSZ:
        stopped = f"at the limit of {_MAX_FILE_BYTES // 1_000_000} MB for one file or its output"
    return stopped


def _exceeded(usage: _Usage, scratch: Path) -> str:
    if len(usage.switches) > _MAX_PROCESSES:
        return f"at the limit of {_MAX_PROCESSES} processes"
    if usage.memory_bytes > _MAX_MEMORY_BYTES:
        return f"at the limit of {_MAX_MEMORY_BYTES // 1_000_000} MB of memory"
    sizes = []
    with os.scandir(scratch) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # `sed -i` has renamed its temporary file
                sizes.append(entry.stat(follow_symlinks=False).st_size)
    if len(sizes) > _MAX_FILES:
        return f"at the limit of {_MAX_FILES} commands and files"
    if sum(sizes) > _MAX_TOTAL_BYTES:
        return f"at the limit of {_MAX_TOTAL_BYTES // 1_000_000} MB of files"
    return ""


def _usage(group: int) -> _Usage:
    """Sum over the living processes of a group."""
    switches, pages, is_waiting = {}, 0, True
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            state, owner, rss = fields[0], int(fields[2]), int(fields[21])
            if owner == group and state not in "ZX":
                switches[int(entry.name)] = _switches(entry)
                pages += rss
                is_waiting = is_waiting and state == "S"
        except OSError:  # it has ended
            continue
    return _Usage(switches, pages * resource.getpagesize(), is_waiting)


def _switches(process: Path) -> int:
    """Number of context switches of a process; each time that it waits is one."""
    counts = re.findall(r"ctxt_switches:\s+(\d+)", (process / "status").read_text(errors="replace"))
    return sum(map(int, counts))
