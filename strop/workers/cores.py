"""Cores of the CPU that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Time per period of this process's container, in control groups version 2; `max` is no limit."""


def usable_cores() -> int:
    """Number of cores that this process may use: the least of the machine, its affinity, its container and
    OMP_NUM_THREADS."""
    affinity = getattr(os, "sched_getaffinity", None)
    limits = [len(affinity(0)) if affinity else os.cpu_count() or 1]
    if _QUOTA.is_file():
        quota, period = _QUOTA.read_text().split()
        if quota != "max":
            limits.append(-(-int(quota) // int(period)))
    threads = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if threads.isdigit():
        limits.append(int(threads))
    return max(1, min(limits))
