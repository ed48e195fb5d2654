"""A process that writes into a buffer, reads it or keeps it, for tests that kill it: see `test_kill.py`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pydantic import TypeAdapter

from strop.buffer.table import open_buffer, serve_buffer
from strop.config.schema.buffer import Buffer as Section
from strop.errors import BufferEnded
from tests.buffer.groups import ids, make_group

GROUPS = 120
"""What each writer writes."""


def write(section: Section, folder: Path, name: str) -> None:
    """Write all groups; started again, all over again."""
    with open_buffer(section, folder, part="writer", member=name) as buffer:
        for number in range(GROUPS):
            buffer.put([make_group(f"{name}-{number}", version=number)])
            time.sleep(0.01)
        buffer.finish()


def read(section: Section, folder: Path, name: str) -> None:
    """Read to the end, note what was read and then, once that is kept for good, what was acknowledged."""
    with open_buffer(section, folder, part="reader", member=name) as buffer, (folder / name).open("a") as log:
        while True:
            try:
                taken = ids(buffer.take(4))
            except BufferEnded:
                return
            log.write(f"read {' '.join(taken)}\n")
            log.flush()
            time.sleep(0.02)
            buffer.acknowledge(taken)
            log.write(f"done {' '.join(taken)}\n")
            log.flush()


def keep(section: Section, folder: Path, name: str) -> None:
    """Be the buffer's process, until it is killed."""
    with serve_buffer(section, folder, "127.0.0.1"):
        time.sleep(3600)


if __name__ == "__main__":
    what, values, folder, name = sys.argv[1:]
    work = {"write": write, "read": read, "keep": keep}[what]
    work(TypeAdapter(Section).validate_json(values), Path(folder), name)
