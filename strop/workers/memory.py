"""Memory of this machine, and the limit of this process to what is free, for code of a user that runs in it; what the
garbage collector leaves out.

Without the limit, the kernel kills a program that takes all memory without a word, and often other processes first.
"""

from __future__ import annotations

import gc
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


_POLL_SECONDS = 0.1
_RESERVED_FRACTION = 1 / 20
"""Fraction of the machine's memory that stays free, for what handles the error."""
_MIN_GROWTH_BYTES = 1 << 30
"""Growth in the block that is always allowed: the kernel may have more to give back than it states."""
_STATM = Path("/proc/self/statm")


class MemoryLimit:
    """In its block, an allocation that the machine has no memory for raises MemoryError in this process.

    The kernel refuses it (`RLIMIT_DATA`), so that libraries get the error, too. The limit follows the free memory ten
    times a second. On other systems than Linux it has no effect.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: tuple[int, int] | None = None
        self._data_at_start = 0

    def __enter__(self) -> MemoryLimit:
        if _STATM.exists():
            import resource

            self._before = resource.getrlimit(resource.RLIMIT_DATA)
            self._data_at_start = _data_bytes()
            self._follow()
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="memory-limit", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None and self._before is not None:
            import resource

            self._stop.set()
            self._thread.join()
            self._thread = None
            resource.setrlimit(resource.RLIMIT_DATA, self._before)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """No limit in this inner block."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            self._follow()

    def _follow(self) -> None:
        import resource

        assert self._before is not None
        soft, hard = self._before
        data = (
            _data_bytes()
        )  # first: what another thread takes before the next line makes the limit smaller, not larger
        free = free_memory_bytes() - int(total_memory_bytes() * _RESERVED_FRACTION)
        limit = max(data + free, self._data_at_start + _MIN_GROWTH_BYTES)
        limits = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min([limit, *limits]), hard))


def _data_bytes() -> int:
    """Private memory of this process, as the kernel counts it for the limit: also what it has not touched yet."""
    return int(_STATM.read_bytes().split()[5]) * mmap.PAGESIZE


@contextmanager
def startup_objects_frozen() -> Iterator[None]:
    """Around a loop: the garbage collector leaves out the objects that exist before.

    Those of the libraries are 500,000. A full collection looks at all of them, in 0.3 to 0.4 s in which no thread runs,
    and a step of many short rollouts makes enough objects for one.
    """
    is_frozen = gc.get_freeze_count() > 0  # in a child of the fork server
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not is_frozen:
            gc.unfreeze()
