"""Memory of this machine."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with the memory limit of this process's container, of control groups version 2 and 1."""
_CGROUP_USAGE = (
    (CGROUP_LIMITS[0], "memory.current", "inactive_file"),
    (CGROUP_LIMITS[1], "memory.usage_in_bytes", "total_inactive_file"),
)
"""For each of these files, that of the memory in use, in the same folder, and the entry of `memory.stat` for the part
of it that the kernel gives back: content of files."""


def total_memory_bytes() -> int:
    """Physical memory of this machine, or the limit of its container where that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    written = [file.read_text().strip() for file in CGROUP_LIMITS if file.is_file()]
    return min([physical, *(int(text) for text in written if text.isdigit())])  # "max" is no limit


def free_memory_bytes() -> int:
    """Memory that processes can still take: of this machine, with its swap, or of its container where that is less.

    Linux only.
    """
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    sizes = {words[0]: int(words[1]) * 1024 for words in lines}
    free = [sizes["MemAvailable:"] + sizes["SwapFree:"]]
    for limit, usage, cache in _CGROUP_USAGE:
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            stat = dict(line.split() for line in (limit.parent / "memory.stat").read_text().splitlines())
            free.append(int(text) - int((limit.parent / usage).read_text()) + int(stat.get(cache, 0)))
    return min(free)
