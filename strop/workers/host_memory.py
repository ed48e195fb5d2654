"""Memory of this machine."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the memory limit of this process's container, of control groups version 2 and 1."""


def total_memory_bytes() -> int:
    """Physical memory of this machine, or the limit of its container where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    written = [file.read_text().strip() for file in CGROUP_LIMITS if file.is_file()]
    return min([physical, *(int(text) for text in written if text.isdigit())])  # "max" is no limit
