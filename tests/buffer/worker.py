"""A process that writes, reads or serves a buffer, to be killed by `test_kill.py`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pydantic import TypeAdapter

from strop.buffer.factory import open_buffer, serve_buffer
from strop.config.schema.buffer import BufferConfig as Section
from strop.config.schema.buffer import PriorityBufferConfig, QueueBufferConfig
from strop.errors import BufferExhausted
from strop.workers.waiting import wait_until
from tests.buffer.groups import ids, make_group

GROUPS = 120
"""Groups per writer."""
KILLED = "killed"
"""File that appears once all processes were killed that will be."""


def write(section: Section, folder: Path, name: str) -> None:
    """Write all groups, also after a restart; the last one after all kills, so that each one meets its process."""
    with open_buffer(section, folder, role="writer", member_name=name) as buffer:
        for number in range(GROUPS):
            if number == GROUPS - 1:
                wait_until((folder / KILLED).exists, KILLED, timeout_seconds=900, interval_seconds=0.02)
            buffer.put([make_group(f"{name}-{number}", version=number)])
            time.sleep(0.01)
        buffer.finish()


def read(section: Section, folder: Path, name: str) -> None:
    """Read to the end; log the groups that were read, and then those that were acknowledged."""
    with (
        open_buffer(section, folder, role="reader", member_name=name) as buffer,
        (folder / name).open("a") as log,
    ):
        while True:
            try:
                taken = ids(buffer.take(4))
            except BufferExhausted:
                return
            log.write(f"read {' '.join(taken)}\n")
            log.flush()
            time.sleep(0.02)
            buffer.acknowledge(taken)
            log.write(f"done {' '.join(taken)}\n")
            log.flush()


def serve(section: Section, folder: Path, name: str) -> None:
    """Serve the buffer until the process is killed."""
    assert isinstance(section, QueueBufferConfig | PriorityBufferConfig)
    with serve_buffer(section, folder, "127.0.0.1"):
        time.sleep(3600)


if __name__ == "__main__":
    what, values, folder, name = sys.argv[1:]
    work = {"write": write, "read": read, "serve": serve}[what]
    work(TypeAdapter(Section).validate_json(values), Path(folder), name)
