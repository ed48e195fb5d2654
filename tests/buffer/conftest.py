"""Every kind of buffer, opened and opened again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from strop.buffer.apart.remote import Member, RemoteStock
from strop.buffer.table import ADDRESS, clear_buffer, open_buffer, queue_of, serve_buffer
from strop.buffer.wait import Check, never_stop
from strop.config.schema.buffer import Buffer as Section
from strop.protocols import Buffer
from tests.buffer.postgres import Server, running_server

KINDS: dict[str, dict[str, Any]] = {
    "queue": {"type": "queue"},
    "queue-sqlite": {"type": "queue", "backup": "backup.db"},
    "queue-jsonl": {"type": "queue", "backup": "backup.jsonl"},
    "priority": {"type": "priority"},
    "priority-sqlite": {"type": "priority", "backup": "backup.db"},
    "priority-jsonl": {"type": "priority", "backup": "backup.jsonl"},
    "file-jsonl": {"type": "file", "format": "jsonl"},
    "file-parquet": {"type": "file", "format": "parquet"},
    "sqlite": {"type": "sql"},
    "postgresql": {"type": "sql"},
    "queue-apart": {"type": "queue"},
    "priority-apart": {"type": "priority", "backup": "backup.jsonl"},
}


@dataclass(frozen=True)
class Place:
    """Where one test's buffer is."""

    values: dict[str, Any]
    folder: Path
    handles: list[Buffer]
    served: ExitStack | None = None
    """The buffer's process, where it is one of its own: here, threads of this one."""

    def section(self, **changes: Any) -> Section:
        """What a run file would say, with some keys changed."""
        return TypeAdapter(Section).validate_python({"read_timeout_seconds": 30, **self.values, **changes})

    def open(
        self, *, part: Any = "both", member: str | None = None, check: Check = never_stop, **changes: Any
    ) -> Any:
        """A handle that the test's end closes."""
        buffer = self._open(self.section(**changes), part, member, check)
        self.handles.append(buffer)
        return buffer

    def _open(self, section: Any, part: Any, member: str | None, check: Check) -> Any:
        if self.served is None:
            return open_buffer(section, self.folder, part=part, member=member, check=check)
        self.served.close()  # whoever has it open finds the next one
        self.served.enter_context(serve_buffer(section, self.folder, "127.0.0.1"))
        both = Member(member or "driver", reads=part != "writer", writes=part != "reader")
        return queue_of(RemoteStock(self.folder / ADDRESS, both, check), section, check)

    def clear(self) -> None:
        """Take out what is there."""
        if self.served is not None:
            self.served.close()
        clear_buffer(self.section(), self.folder, is_process=self.served is not None)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server of this session's own."""
    with running_server() as server:
        yield server


@pytest.fixture
def place_of(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Place]]:
    """Makes the place for one kind of buffer."""
    handles: list[Buffer] = []

    def make(kind: str) -> Place:
        values = KINDS[kind]
        if kind == "postgresql":
            values = values | {"url": request.getfixturevalue("server").url}
        return Place(values, tmp_path, handles, served if kind.endswith("-apart") else None)

    with ExitStack() as served:
        yield make
        for handle in handles:
            handle.close()
