"""Buffers whose files are damaged: one paragraph that names the file, whatever the damage, and no process that ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from strop.buffer.codec import decode, encode
from strop.buffer.factory import open_buffer
from strop.config.schema.buffer import BufferConfig
from strop.errors import StoreError
from tests.buffer.groups import ids, make_group, make_groups

QUEUE_LINES = {"type": "queue", "backup": "backup.jsonl"}
QUEUE_SQLITE = {"type": "queue", "backup": "backup.db"}
LINES = {"type": "file", "format": "jsonl"}
PARQUET = {"type": "file", "format": "parquet"}
SQL = {"type": "sql"}


def read(section: dict[str, Any], folder: Path) -> list[str]:
    with open_buffer(TypeAdapter(BufferConfig).validate_python(section), folder) as buffer:
        return ids(buffer.take(9, timeout_seconds=0))


def bytes_at(pattern: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (file,) = folder.glob(pattern)
        file.write_bytes(change(file.read_bytes()))

    return damage


def sql(name: str, statement: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        connection = sqlite3.connect(folder / name)
        connection.execute(statement)
        connection.commit()
        connection.close()

    return damage


@pytest.mark.parametrize(
    ("section", "damage", "message"),
    [
        (
            QUEUE_LINES,
            bytes_at("backup.jsonl", lambda text: b"\xff\n" + text),
            "backup.jsonl line 1 is not a line",
        ),
        (
            QUEUE_LINES,
            bytes_at("backup.jsonl", lambda text: b"[" * 9**5 + b"\n" + text),
            "backup.jsonl line 1 is not",
        ),
        (QUEUE_LINES, bytes_at("backup.jsonl", lambda _: b""), "backup.jsonl is empty"),
        (QUEUE_SQLITE, bytes_at("backup.db", lambda _: b""), "backup.db is empty"),
        (QUEUE_SQLITE, sql("backup.db", "UPDATE groups SET content = 'text'"), "backup.db is damaged"),
        (QUEUE_SQLITE, sql("backup.db", "UPDATE groups SET content = zeroblob(99)"), "backup.db is damaged"),
        (QUEUE_SQLITE, sql("backup.db", "UPDATE groups SET uses = 'x'"), "backup.db is damaged"),
        (
            QUEUE_SQLITE,
            bytes_at("backup.db", lambda data: data[:4096] + bytes(len(data) - 4096)),
            "backup.db cannot",
        ),
        (
            LINES,
            bytes_at("experiences/*.jsonl", lambda text: text[:9] + b"\xff" + text[10:]),
            "jsonl cannot be read",
        ),
        (LINES, bytes_at("experiences/*.jsonl", lambda text: b"[" * 9**5), "jsonl cannot be read"),
        (LINES, bytes_at("experiences/*.jsonl", lambda text: text[:-9]), "jsonl cannot be read"),
        (LINES, bytes_at("experiences/done.txt", lambda text: b"\xff" + text), "done.txt is damaged"),
        (PARQUET, bytes_at("experiences/*.parquet", lambda data: data[:-9]), "parquet cannot be read"),
        (
            PARQUET,
            bytes_at("experiences/*.parquet", lambda data: data[:99] + bytes(99) + data[198:]),
            "cannot be read",
        ),
        (
            SQL,
            sql("buffer.db", "UPDATE strop_groups SET content = zeroblob(99)"),
            "A group of the buffer .* is damaged",
        ),
        (SQL, sql("buffer.db", "UPDATE strop_groups SET id = x'ff' || id"), "buffer.db cannot be used"),
        (
            SQL,
            bytes_at("buffer.db", lambda data: data[:4096] + bytes(len(data) - 4096)),
            "buffer.db cannot be",
        ),
    ],
)
def test_a_damaged_file_is_named(
    section: dict[str, Any], damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    with open_buffer(TypeAdapter(BufferConfig).validate_python(section), tmp_path) as buffer:
        buffer.put(make_groups(3))
        buffer.acknowledge(ids(buffer.take(1)))
    damage(tmp_path)
    with pytest.raises(StoreError, match=message):
        read(section, tmp_path)


@pytest.mark.parametrize("value", [0, 127, 255])
def test_any_damaged_byte_of_a_group_is_read_or_refused(value: int) -> None:
    """Offsets beyond the end of the bytes are checked before they are followed, which would end the process."""
    valid = encode(make_group("g"))
    for at in range(0, len(valid), 3):
        try:
            decode(valid[:at] + bytes([value]) + valid[at + 1 :])
        except StoreError as error:
            assert str(error)
