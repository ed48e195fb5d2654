"""Writer, reader and buffer processes, killed at random moments and restarted; CI kills one of each."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from strop.protocols import BufferCounts
from strop.workers.child_process import ChildProcess, start_module
from strop.workers.waiting import wait_until
from tests.buffer.conftest import Place
from tests.buffer.worker import GROUPS, KILLED
from tests.cases import nightly
from tests.kill_log import record_kill

WRITERS = ("writer-0", "writer-1")
READERS = ("reader-0", "reader-1")
KEEPER = "keeper"
AT_NIGHT = 10
"""Kills of one test."""
pytestmark = pytest.mark.slow


class Crew:
    """Child processes by name."""

    def __init__(self, place: Place, names: Sequence[str], **changes: Any) -> None:
        self._place = place
        self._values = place.section(capacity_groups=16, read_timeout_seconds=600, **changes)
        self._processes = {name: self._start(name) for name in names}

    def wait_for_work(self) -> None:
        """Wait until a group of each writer was read: readers end without a writer that has not joined yet."""
        logs = [self._place.folder / name for name in READERS]

        def all_are_read() -> bool:
            text = "".join(log.read_text() for log in logs if log.exists())
            return all(f"{writer}-" in text for writer in WRITERS)

        assert wait_until(all_are_read, "groups", timeout_seconds=600, interval_seconds=0.02)

    def kill(self, name: str) -> None:
        """Kill a process, which runs, and restart it."""
        process = self._processes[name]
        assert process.poll() is None, f"{name} had ended before"
        process.kill()
        record_kill("buffer process" if name == KEEPER else "writer or reader of a buffer")
        process.wait()
        self._processes[name] = self._start(name)

    def wait(self) -> None:
        """Have the writers end, and wait until all processes have ended successfully."""
        (self._place.folder / KILLED).touch()
        codes = {name: self._processes[name].wait(900) for name in self._processes if name != KEEPER}
        assert set(codes.values()) == {0}, codes

    def end(self) -> None:
        """Kill all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _start(self, name: str) -> ChildProcess:
        what = "serve" if name == KEEPER else "write" if name in WRITERS else "read"
        values = self._values.model_dump_json()
        imports = ["strop.buffer.factory", "strop.buffer.sql.buffer"]
        return start_module(
            "tests.buffer.worker", what, values, str(self._place.folder), name, imports=imports
        )


@pytest.mark.parametrize(
    ("kind", "kills"), [("sqlite", 2), *nightly(("sqlite", AT_NIGHT), ("postgresql", AT_NIGHT))]
)
def test_each_group_is_acknowledged_once_after_any_kill(
    kind: str, kills: int, place_of: Callable[[str], Place]
) -> None:
    place = place_of(kind)
    crew = Crew(place, (*WRITERS, *READERS), lease_seconds=600)
    work_through(crew, [(READERS, WRITERS)[number % 2] for number in range(kills)], random.Random(kind))
    assert_each_once(place, READERS, kills)


@pytest.mark.parametrize(
    ("backup", "kills"), [("backup.jsonl", 2), *nightly(("backup.db", AT_NIGHT), ("backup.jsonl", AT_NIGHT))]
)
def test_a_queue_process_loses_no_group_and_returns_none_twice(
    backup: str, kills: int, place_of: Callable[[str], Place]
) -> None:
    place = place_of("queue-process")
    reader = READERS[:1]
    crew = Crew(place, (KEEPER, *WRITERS, *reader), backup=backup)
    victims = [([KEEPER], reader, [KEEPER], WRITERS)[number % 4] for number in range(kills)]
    work_through(crew, victims, random.Random(backup))
    assert_each_once(place, reader, kills, backup=backup)


def work_through(crew: Crew, victims: Sequence[Sequence[str]], draw: random.Random) -> None:
    """Kill one of each in turns while all run, and wait for the end."""
    try:
        crew.wait_for_work()
        for names in victims:
            time.sleep(draw.uniform(0.1, 0.5))
            crew.kill(draw.choice(names))
        crew.wait()
    finally:
        crew.end()


def assert_each_once(place: Place, readers: Sequence[str], kills: int, **changes: Any) -> None:
    """Each group was read, and acknowledged exactly once."""
    everything = {f"{writer}-{number}" for writer in WRITERS for number in range(GROUPS)}
    assert place.open(**changes).counts() == BufferCounts(queued=0, leased=0, done=len(everything))
    lines = [line.split() for name in readers for line in (place.folder / name).read_text().splitlines()]
    read = [id for line in lines if line[0] == "read" for id in line[1:]]
    assert set(read) == everything
    assert len(read) <= len(everything) + 4 * kills  # the leases of killed readers are read again
    done = Counter(id for line in lines if line[0] == "done" for id in line[1:])
    assert set(done.values()) == {1}
    assert len(done) >= len(everything) - 4 * kills  # the last line of a killed reader may be missing
