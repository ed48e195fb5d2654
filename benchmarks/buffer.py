"""Every buffer's throughput with 8 writers and 1 reader, beside a bare loop of SQLite inserts.

    .venv/bin/python -m benchmarks.buffer

Writers put one group at a time, the reader takes 16 and acknowledges them. A group is 8 experiences of
1024 tokens. Buffers in memory have threads as writers, the others processes; between those a queue is a
process, too. Seconds are by the clock, from the start of all to the last acknowledgement; CPU time is that
of all these processes (not of the database server). The bare loop inserts as many encoded groups into a
table, a transaction each.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from strop.buffer.codec import encode
from strop.buffer.table import Part, open_buffer, serve_buffer
from strop.config.schema.buffer import Buffer as Section
from strop.config.schema.buffer import FileBuffer, PriorityBuffer, QueueBuffer, SqlBuffer
from strop.protocols import Buffer
from strop.types import ExperienceGroup
from tests.buffer.groups import make_group
from tests.buffer.postgres import Server, find_binaries

WRITERS, BATCH = 8, 16
WARM_UP = 4
"""Groups that each process writes before it is measured: SQLAlchemy compiles a statement the first time."""


@dataclass(frozen=True)
class Measured:
    """What one buffer took."""

    name: str
    seconds: float
    cpu_seconds: float


def group(id: str) -> ExperienceGroup:
    """One of realistic size."""
    return make_group(id, experiences=8, tokens=1024)


def write(buffer: Buffer, groups: list[ExperienceGroup]) -> None:
    """One group at a time."""
    for each in groups:
        buffer.put([each])


def read(buffer: Buffer, count: int) -> None:
    """All of them."""
    while count:
        taken = buffer.take(min(BATCH, count))
        buffer.acknowledge([each.id for each in taken])
        count -= len(taken)


def bare_loop(folder: Path, per_writer: int) -> Measured:
    """SQLite as fast as it goes: one process, and nothing but INSERT."""
    contents = [(f"g{i}", encode(group(f"g{i}"))) for i in range(WRITERS * per_writer)]
    rows = sqlite3.connect(folder / "bare.db", isolation_level=None)
    rows.execute("PRAGMA journal_mode = WAL")
    rows.execute("PRAGMA synchronous = NORMAL")
    rows.execute("CREATE TABLE groups (number INTEGER PRIMARY KEY, id TEXT UNIQUE, content BLOB)")
    started, cpu = time.perf_counter(), time.process_time()
    for row in contents:
        rows.execute("INSERT INTO groups (id, content) VALUES (?, ?)", row)
    return Measured("bare SQLite inserts", time.perf_counter() - started, time.process_time() - cpu)


def with_threads(name: str, section: Section, folder: Path, per_writer: int) -> Measured:
    """Writers are threads of the reader's process."""
    groups = [[group(f"w{w}-{i}") for i in range(per_writer)] for w in range(WRITERS)]
    with open_buffer(section, folder) as buffer:
        threads = [threading.Thread(target=write, args=[buffer, mine]) for mine in groups]
        started, cpu = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        read(buffer, WRITERS * per_writer)
        return Measured(name, time.perf_counter() - started, time.process_time() - cpu)


def with_processes(name: str, section: Section, folder: Path, per_writer: int) -> Measured:
    """Writers and the reader are processes, which start together once all are ready."""
    numbers = [*map(str, range(WRITERS)), "reader"]
    arguments = [TypeAdapter(Section).dump_json(section).decode(), str(folder), str(per_writer)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.buffer", "--work", number, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in numbers
    ]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    started = time.perf_counter()
    outputs = []
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        outputs.append(worker.communicate()[0])
    ended = float(outputs[-1].split()[1])
    return Measured(name, ended - started, sum(float(output.split()[0]) for output in outputs))


def with_a_process_between(name: str, section: Section, folder: Path, per_writer: int) -> Measured:
    """The same, and the buffer is this process, whose CPU time counts too."""
    assert isinstance(section, QueueBuffer | PriorityBuffer)
    with serve_buffer(section, folder, "127.0.0.1"):
        cpu = time.process_time()
        measured = with_processes(name, section, folder, per_writer)
        cpu = time.process_time() - cpu
    return Measured(name, measured.seconds, measured.cpu_seconds + cpu)


def work(number: str, values: str, folder: str, per_writer: int) -> None:
    """One process of `with_processes`."""
    section = TypeAdapter(Section).validate_json(values)
    is_reader = number == "reader"
    part: Part = "reader" if is_reader else "writer"
    groups = [] if is_reader else [group(f"w{number}-{i}") for i in range(per_writer)]
    with open_buffer(section, Path(folder), part=part) as buffer:
        if is_reader:
            read(buffer, WRITERS * WARM_UP)
        else:
            write(buffer, [group(f"w{number}-warm-{i}") for i in range(WARM_UP)])
        print("ready", flush=True)
        sys.stdin.readline()
        cpu = time.process_time()
        if is_reader:
            read(buffer, WRITERS * per_writer)
        else:
            write(buffer, groups)
        print(time.process_time() - cpu, time.perf_counter(), flush=True)


@contextmanager
def postgresql() -> Iterator[str | None]:
    """The URL of a server of our own; None where none is installed."""
    binaries = find_binaries()
    if binaries is None:
        yield None
        return
    server = Server(binaries)
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


def measure(per_writer: int) -> list[Measured]:
    """All buffers, one after the other."""
    Way = Callable[[str, Section, Path, int], Measured]
    with postgresql() as url:
        ways: list[tuple[str, Way, Section]] = [
            ("queue", with_threads, QueueBuffer()),
            ("queue, backup in SQLite", with_threads, QueueBuffer(backup="backup.db")),
            ("queue, backup in JSON Lines", with_threads, QueueBuffer(backup="backup.jsonl")),
            ("priority", with_threads, PriorityBuffer()),
            ("queue, a process of its own", with_a_process_between, QueueBuffer()),
            ("the same, backup in JSON Lines", with_a_process_between, QueueBuffer(backup="backup.jsonl")),
            ("sql, SQLite", with_processes, SqlBuffer()),
            *([("sql, PostgreSQL", with_processes, SqlBuffer(url=url))] if url else []),
            ("file, Parquet", with_processes, FileBuffer(format="parquet")),
            ("file, JSON Lines", with_processes, FileBuffer(format="jsonl")),
        ]
        with tempfile.TemporaryDirectory() as root:
            measured = [bare_loop(Path(root), per_writer)]
            for number, (name, way, section) in enumerate(ways):
                folder = Path(root) / str(number)
                folder.mkdir()
                measured.append(way(name, section, folder, per_writer))
    return measured


def show(measured: list[Measured], per_writer: int) -> None:
    """A table in Markdown."""
    groups = WRITERS * per_writer
    megabytes = len(encode(group("g"))) * groups / 1e6
    print(f"{groups} groups, {megabytes:.0f} MB, {WRITERS} writers, 1 reader, {os.cpu_count()} cores\n")
    print("| buffer | groups/s | MB/s | times the bare loop | CPU ms/group |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for each in measured:
        share = measured[0].seconds / each.seconds
        print(
            f"| {each.name} | {groups / each.seconds:.0f} | {megabytes / each.seconds:.1f} "
            f"| {share:.2f} | {1000 * each.cpu_seconds / groups:.2f} |"
        )


def main() -> None:
    """Measure and print, or be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--groups", type=int, default=100, help="groups of each writer")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        number, values, folder, per_writer = arguments.work
        work(number, values, folder, int(per_writer))
    else:
        show(measure(arguments.groups), arguments.groups)


if __name__ == "__main__":
    main()
