"""Fixtures that open every kind of buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from strop.buffer.factory import (
    BUFFER_ADDRESS_FILE,
    clear_buffer,
    make_queue_buffer,
    open_buffer,
    serve_buffer,
)
from strop.buffer.remote import BufferClientRole, RemoteStore
from strop.config.schema.buffer import BufferConfig as Section
from strop.protocols import Buffer
from strop.workers.waiting import StopCheck, never_stop
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
    "queue-process": {"type": "queue"},
    "priority-process": {"type": "priority", "backup": "backup.jsonl"},
}


@dataclass(frozen=True)
class Place:
    """The buffer of one test."""

    values: dict[str, Any]
    folder: Path
    handles: list[Buffer]
    served: ExitStack | None = None
    """The server of a buffer process; in these tests it runs in threads of this process."""

    def section(self, **changes: Any) -> Section:
        """The `buffer` section, with some keys changed."""
        return TypeAdapter(Section).validate_python({"read_timeout_seconds": 600, **self.values, **changes})

    def open(
        self,
        *,
        role: Any = "both",
        member_name: str | None = None,
        check: StopCheck = never_stop,
        **changes: Any,
    ) -> Any:
        """Open the buffer; it is closed after the test."""
        buffer = self._open(self.section(**changes), role, member_name, check)
        self.handles.append(buffer)
        return buffer

    def _open(self, section: Any, role: Any, member_name: str | None, check: StopCheck) -> Any:
        if self.served is None:
            return open_buffer(section, self.folder, role=role, member_name=member_name, check=check)
        self.served.close()  # clients that have it open reconnect to the next one
        self.served.enter_context(serve_buffer(section, self.folder, "127.0.0.1"))
        both = BufferClientRole(member_name or "driver", reads=role != "writer", writes=role != "reader")
        return make_queue_buffer(RemoteStore(self.folder / BUFFER_ADDRESS_FILE, both, check), section, check)

    def clear(self) -> None:
        """Delete the buffer's contents."""
        if self.served is not None:
            self.served.close()
        clear_buffer(self.section(), self.folder, is_process=self.served is not None)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server for this test session."""
    with running_server() as server:
        yield server


@pytest.fixture
def place_of(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Place]]:
    """A function that makes the place of one kind of buffer."""
    handles: list[Buffer] = []

    def make(kind: str) -> Place:
        values = KINDS[kind]
        if kind == "postgresql":
            values = values | {"url": request.getfixturevalue("server").url}
        return Place(values, tmp_path, handles, served if kind.endswith("-process") else None)

    with ExitStack() as served:
        yield make
        for handle in handles:
            handle.close()
