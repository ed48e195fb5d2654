"""Writer, reader and buffer processes, killed at random moments and restarted."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from strop.protocols import BufferCounts
from tests.buffer.conftest import Place
from tests.buffer.worker import GROUPS
from tests.kill_log import record_kill

ROOT = Path(__file__).parents[2]
WRITERS = ("writer-0", "writer-1")
READERS = ("reader-0", "reader-1")
KEEPER = "keeper"
KILLS = 10
"""Kills of one test."""
pytestmark = pytest.mark.faults


class Crew:
    """Child processes by name."""

    def __init__(self, place: Place, names: Sequence[str], **changes: Any) -> None:
        self._place = place
        self._values = place.section(capacity_groups=16, read_timeout_seconds=60, **changes)
        self._processes = {name: self._start(name) for name in names}

    def wait_for_work(self) -> None:
        """Wait until a group was read."""
        deadline = time.monotonic() + 60
        while not any((self._place.folder / name).exists() for name in READERS):
            assert time.monotonic() < deadline, "no group was read"
            time.sleep(0.02)

    def kill(self, names: Sequence[str], draw: random.Random) -> int:
        """Kill one of these that runs, and restart it; returns the number of killed processes."""
        running = [name for name in names if self._processes[name].poll() is None]
        for name in draw.sample(running, min(1, len(running))):
            self._processes[name].kill()
            record_kill("buffer process" if name == KEEPER else "writer or reader of a buffer")
            self._processes[name].wait()
            self._processes[name] = self._start(name)
        return min(1, len(running))

    def wait(self) -> None:
        """Wait until all processes have ended successfully."""
        codes = {name: self._processes[name].wait(120) for name in self._processes if name != KEEPER}
        assert set(codes.values()) == {0}, codes

    def end(self) -> None:
        """Kill all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        what = "serve" if name == KEEPER else "write" if name in WRITERS else "read"
        values = self._values.model_dump_json()
        arguments = ["-m", "tests.buffer.worker", what, values, str(self._place.folder), name]
        return subprocess.Popen([sys.executable, *arguments], cwd=ROOT)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_each_group_is_acknowledged_once_after_any_kill(kind: str, place_of: Callable[[str], Place]) -> None:
    place = place_of(kind)
    draw = random.Random(kind)
    crew = Crew(place, (*WRITERS, *READERS), lease_seconds=15)
    work_through(crew, [(READERS, WRITERS)[number % 2] for number in range(KILLS)], draw)
    assert_each_once(place, READERS)


@pytest.mark.parametrize("backup", ["backup.db", "backup.jsonl"])
def test_a_queue_process_loses_no_group_and_returns_none_twice(
    backup: str, place_of: Callable[[str], Place]
) -> None:
    place = place_of("queue-process")
    draw = random.Random(backup)
    reader = READERS[:1]
    crew = Crew(place, (KEEPER, *WRITERS, *reader), backup=backup)
    work_through(crew, [([KEEPER], reader, [KEEPER], WRITERS)[number % 4] for number in range(KILLS)], draw)
    assert_each_once(place, reader, backup=backup)


def work_through(crew: Crew, victims: Sequence[Sequence[str]], draw: random.Random) -> None:
    """Kill one of each in turns while all run, and wait for the end."""
    try:
        crew.wait_for_work()
        for names in victims:
            time.sleep(draw.uniform(0.1, 0.5))
            assert crew.kill(names, draw), f"{' and '.join(names)} had ended before"
        crew.wait()
    finally:
        crew.end()


def assert_each_once(place: Place, readers: Sequence[str], **changes: Any) -> None:
    """Each group was read, and acknowledged exactly once."""
    everything = {f"{writer}-{number}" for writer in WRITERS for number in range(GROUPS)}
    assert place.open(**changes).counts() == BufferCounts(queued=0, leased=0, done=len(everything))
    lines = [line.split() for name in readers for line in (place.folder / name).read_text().splitlines()]
    read = [id for line in lines if line[0] == "read" for id in line[1:]]
    assert set(read) == everything
    assert len(read) <= len(everything) + 4 * KILLS  # the leases of killed readers are read again
    done = Counter(id for line in lines if line[0] == "done" for id in line[1:])
    assert set(done.values()) == {1}
    assert len(done) >= len(everything) - 4 * KILLS  # the last line of a killed reader may be missing
