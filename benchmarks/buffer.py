"""Throughput of each buffer with 8 writers and 1 reader, compared with a bare loop of SQLite inserts.

    .venv/bin/python -m benchmarks.buffer

Each writer puts one group at a time; the reader takes 16 groups and acknowledges them. A group has 8 experiences of
1024 tokens. Writers are threads for a buffer in memory, and processes for the other buffers, including a queue in a
separate process. The throughput is in wall time, from the start of all writers to the last acknowledgement; the CPU
time is that of all these processes, without the database server. The bare loop inserts the same number of encoded
groups into a table, in one transaction each.
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
from strop.buffer.factory import BufferRole, open_buffer, serve_buffer
from strop.config.schema.buffer import (
    BufferConfig,
    FileBufferConfig,
    PriorityBufferConfig,
    QueueBufferConfig,
    SqlBufferConfig,
)
from strop.protocols import Buffer
from strop.types import ExperienceGroup
from tests.buffer.groups import make_group
from tests.buffer.postgres import Server, find_binaries

WRITERS, BATCH = 8, 16
WARM_UP = 4
"""Groups that each writer puts before the measurement, because SQLAlchemy compiles a statement at its first use."""


@dataclass(frozen=True)
class Measured:
    """Measurement of one buffer."""

    name: str
    seconds: float
    """Wall time in seconds."""
    cpu_seconds: float
    """CPU time of all processes in seconds."""


def group(id: str) -> ExperienceGroup:
    """Make a group of 8 experiences with 1024 tokens each."""
    return make_group(id, experiences=8, tokens=1024)


def write(buffer: Buffer, groups: list[ExperienceGroup]) -> None:
    """Put one group at a time."""
    for each in groups:
        buffer.put([each])


def read(buffer: Buffer, count: int) -> None:
    """Take and acknowledge this number of groups."""
    while count:
        taken = buffer.take(min(BATCH, count))
        buffer.acknowledge([each.id for each in taken])
        count -= len(taken)


def bare_loop(folder: Path, per_writer: int) -> Measured:
    """Insert encoded groups into SQLite, in one process."""
    rows = [(f"g{i}", encode(group(f"g{i}"))) for i in range(WRITERS * per_writer)]
    database = sqlite3.connect(folder / "bare.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE groups (number INTEGER PRIMARY KEY, id TEXT UNIQUE, content BLOB)")
    started, cpu = time.perf_counter(), time.process_time()
    for row in rows:
        database.execute("INSERT INTO groups (id, content) VALUES (?, ?)", row)
    return Measured("bare SQLite inserts", time.perf_counter() - started, time.process_time() - cpu)


def with_threads(name: str, section: BufferConfig, folder: Path, per_writer: int) -> Measured:
    """Measure a buffer whose writers are threads of the reader's process."""
    groups = [[group(f"w{w}-{i}") for i in range(per_writer)] for w in range(WRITERS)]
    with open_buffer(section, folder) as buffer:
        threads = [threading.Thread(target=write, args=[buffer, part]) for part in groups]
        started, cpu = time.perf_counter(), time.process_time()
        for thread in threads:
            thread.start()
        read(buffer, WRITERS * per_writer)
        return Measured(name, time.perf_counter() - started, time.process_time() - cpu)


def with_processes(name: str, section: BufferConfig, folder: Path, per_writer: int) -> Measured:
    """Measure a buffer whose writers and reader are processes, which begin once all of them are ready."""
    names = [*map(str, range(WRITERS)), "reader"]
    arguments = [TypeAdapter(BufferConfig).dump_json(section).decode(), str(folder), str(per_writer)]
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.buffer", "--work", name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
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


def with_buffer_process(name: str, section: BufferConfig, folder: Path, per_writer: int) -> Measured:
    """Measure a buffer in this process, whose CPU time is included, with processes as writers and reader."""
    assert isinstance(section, QueueBufferConfig | PriorityBufferConfig)
    with serve_buffer(section, folder, "127.0.0.1"):
        cpu = time.process_time()
        measured = with_processes(name, section, folder, per_writer)
        cpu = time.process_time() - cpu
    return Measured(name, measured.seconds, measured.cpu_seconds + cpu)


def work(name: str, values: str, folder: str, per_writer: int) -> None:
    """Run one writer or the reader, in a process of `with_processes`."""
    section = TypeAdapter(BufferConfig).validate_json(values)
    is_reader = name == "reader"
    role: BufferRole = "reader" if is_reader else "writer"
    groups = [] if is_reader else [group(f"w{name}-{i}") for i in range(per_writer)]
    with open_buffer(section, Path(folder), role=role) as buffer:
        if is_reader:
            read(buffer, WRITERS * WARM_UP)
        else:
            write(buffer, [group(f"w{name}-warm-{i}") for i in range(WARM_UP)])
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
    """Start a PostgreSQL server and yield its URL; None if PostgreSQL is not installed."""
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
    """Measure all buffers, one after the other."""
    Method = Callable[[str, BufferConfig, Path, int], Measured]
    with postgresql() as url:
        variants: list[tuple[str, Method, BufferConfig]] = [
            ("queue", with_threads, QueueBufferConfig()),
            ("queue, backup in SQLite", with_threads, QueueBufferConfig(backup="backup.db")),
            ("queue, backup in JSON Lines", with_threads, QueueBufferConfig(backup="backup.jsonl")),
            ("priority", with_threads, PriorityBufferConfig()),
            ("queue, separate process", with_buffer_process, QueueBufferConfig()),
            (
                "queue, separate process, backup in JSON Lines",
                with_buffer_process,
                QueueBufferConfig(backup="backup.jsonl"),
            ),
            ("sql, SQLite", with_processes, SqlBufferConfig()),
            *([("sql, PostgreSQL", with_processes, SqlBufferConfig(url=url))] if url else []),
            ("file, Parquet", with_processes, FileBufferConfig(format="parquet")),
            ("file, JSON Lines", with_processes, FileBufferConfig(format="jsonl")),
        ]
        with tempfile.TemporaryDirectory() as root:
            measured = [bare_loop(Path(root), per_writer)]
            for number, (name, method, section) in enumerate(variants):
                folder = Path(root) / str(number)
                folder.mkdir()
                measured.append(method(name, section, folder, per_writer))
    return measured


def print_table(measured: list[Measured], per_writer: int) -> None:
    """Print a table in Markdown."""
    groups = WRITERS * per_writer
    megabytes = len(encode(group("g"))) * groups / 1e6
    print(f"{groups} groups, {megabytes:.0f} MB, {WRITERS} writers, 1 reader, {os.cpu_count()} cores\n")
    print("| buffer | groups/s | MB/s | relative to the bare loop | CPU ms/group |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for each in measured:
        ratio = measured[0].seconds / each.seconds
        print(
            f"| {each.name} | {groups / each.seconds:.0f} | {megabytes / each.seconds:.1f} "
            f"| {ratio:.2f} | {1000 * each.cpu_seconds / groups:.2f} |"
        )


def main() -> None:
    """Run the command line; `--work` is for the processes that this script starts."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--groups", type=int, default=100, help="number of groups per writer")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        name, values, folder, per_writer = arguments.work
        work(name, values, folder, int(per_writer))
    else:
        print_table(measure(arguments.groups), arguments.groups)


if __name__ == "__main__":
    main()
