"""Confinement of this process: resource limits, capabilities, system calls and files."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import struct
import sys
from typing import Any

from .landlock import restrict_files
from .seccomp import filter_system_calls

_PR_SET_NO_NEW_PRIVS = 38
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_MAX_OPEN_FILES = 64
_MAX_SIGNALS = 64


def confine(settings: dict[str, Any]) -> str:
    """Confine this process for good; returns the reached isolation level: limited, filtered or confined."""
    _limit_resources(settings)
    if sys.platform != "linux":
        return "limited"
    libc = ctypes.CDLL(None, use_errno=True)
    _drop_capabilities(libc)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    has_file_rules = False
    with contextlib.suppress(OSError):
        restrict_files(libc, settings["readable"], settings["writable"])
        has_file_rules = True
    try:
        filter_system_calls(libc)
    except OSError:
        return "limited"
    return "confined" if has_file_rules else "filtered"


def _limit_resources(settings: dict[str, Any]) -> None:
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: settings["memory_bytes"],
        resource.RLIMIT_FSIZE: settings["file_bytes"],
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
        resource.RLIMIT_CPU: settings["cpu_seconds"],
    }
    if sys.platform == "linux":
        wanted[resource.RLIMIT_SIGPENDING] = (
            _MAX_SIGNALS  # of the user, with timers; another process may need them
        )
        wanted[resource.RLIMIT_MEMLOCK] = 0
    if settings["max_threads"] is not None:
        wanted[resource.RLIMIT_NPROC] = settings["max_threads"]
    if sys.platform != "linux":
        wanted[resource.RLIMIT_NPROC] = (
            0  # Linux: the filter of system calls, because this counts threads too
        )
    for kind, limit in wanted.items():
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS cannot limit memory
            resource.setrlimit(kind, (limit, limit))


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    import platform

    number = _CAPSET.get(platform.machine())
    if number is not None:
        libc.syscall(number, struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))
