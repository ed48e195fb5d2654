"""The limit of a process to the memory that is free, tried in processes of their own; what collections leave out."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from strop.workers.memory import startup_objects_frozen

PROGRAM = """
import mmap, resource, threading
from strop.workers import memory

first = memory._data_bytes()
memory.total_memory_bytes = lambda: 0
memory.free_memory_bytes = lambda: first + {free} - memory._data_bytes()
memory._MIN_GROWTH_BYTES = 50_000_000
before = resource.getrlimit(resource.RLIMIT_DATA)

def grow():
    rows = []
    while True:
        rows.append("x" * 1_000_000)

try:
    with memory.MemoryLimit() as limit:
        with limit.lifted():
            assert resource.getrlimit(resource.RLIMIT_DATA) == before
        {work}
except (MemoryError, OSError) as error:
    taken = memory._data_bytes() - first
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert not any(thread.name == "memory-limit" for thread in threading.enumerate())
    print(type(error).__name__, taken // 10_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux counts a process's private memory")
@pytest.mark.parametrize(
    ("free", "work", "expected"),
    [
        (400_000_000, "grow()", range(4, 41)),  # less where the program grows while a starved thread measures
        (400_000_000, "bytearray(500_000_000)", range(2)),
        (400_000_000, "mmap.mmap(-1, 500_000_000, mmap.MAP_PRIVATE)", range(2)),
        (0, "grow()", range(3, 6)),  # a growth that is always allowed
    ],
)
def test_an_allocation_beyond_the_free_memory_is_an_error(free: int, work: str, expected: range) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(free=free, work=work)],
        capture_output=True,
        text=True,
        check=True,
    )
    name, taken = done.stdout.split()
    assert name in ("MemoryError", "OSError") and int(taken) in expected, done.stdout


def test_objects_of_the_start_are_left_out_of_collections_until_the_end():
    before = gc.get_freeze_count()
    gc.unfreeze()  # what a fork server has frozen
    try:
        with startup_objects_frozen():
            assert gc.get_freeze_count() > 0
            with startup_objects_frozen():
                pass
            assert gc.get_freeze_count() > 0, "the end of an inner loop is not that of the outer one"
        assert gc.get_freeze_count() == 0
    finally:
        if before:
            gc.freeze()
