"""Backups after a kill of their process at any moment, and invalid backups."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from strop.buffer import backup
from strop.buffer.factory import open_buffer
from strop.config.schema.buffer import BufferConfig as Section
from strop.config.schema.buffer import QueueBufferConfig
from strop.errors import StoreError
from tests.buffer.conftest import Place
from tests.buffer.groups import assert_same, ids, make_groups

BACKUPS = ["queue-sqlite", "queue-jsonl"]
WORK = """
import sys
from pathlib import Path
from strop.buffer.factory import open_buffer
from strop.config.schema.buffer import QueueBufferConfig
from tests.buffer.groups import ids, make_group

buffer = open_buffer(QueueBufferConfig(backup=sys.argv[2]), Path(sys.argv[1]))
for number in range(1_000_000):
    buffer.put([make_group(f"g{2 * number}"), make_group(f"g{2 * number + 1}")])
    buffer.acknowledge(ids(buffer.take(1)))
    print(2 * number + 1, number, flush=True)  # the last one put, and the last one done
"""


@pytest.mark.slow
@pytest.mark.parametrize("backup", ["backup.db", "backup.jsonl"])
def test_a_killed_process_leaves_its_groups_except_done_ones(backup: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORK, str(tmp_path), backup]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        output = [process.stdout.readline() for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        output += process.stdout
    lines = [line.split() for line in output if line.endswith("\n")]
    put, done = map(int, lines[-1])
    with open_buffer(QueueBufferConfig(backup=backup), tmp_path) as buffer:
        left = ids(buffer.take(4000, timeout_seconds=0))
    # After its last line it may have put two more groups, and acknowledged one.
    assert left[0] in (f"g{done + 1}", f"g{done + 2}")
    assert left[-1] in (f"g{put}", f"g{put + 1}", f"g{put + 2}")
    numbers = [int(name[1:]) for name in left]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))


def test_an_incomplete_last_line_is_ignored(place_of: Callable[[str], Place]) -> None:
    place = place_of("queue-jsonl")
    place.open().put(make_groups(3))
    place.handles.pop().close()
    file = place.folder / "backup.jsonl"
    file.write_text(file.read_text()[:-40])
    buffer = place.open()
    assert_same(buffer.take(9, timeout_seconds=0), make_groups(2))
    buffer.put(make_groups(3))
    assert ids(buffer.take(1)) == ["g2"]


@pytest.mark.parametrize(
    "line", ["nonsense", '{"lost": []}', "[]", '{"put": {"id": "a"}}', '{"put": 1, "done": []}']
)
def test_an_invalid_line_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "backup.jsonl"
    file.write_text('{"done": []}\n' + line + "\n")
    with pytest.raises(StoreError, match=r"backup\.jsonl line 2"):
        open_buffer(QueueBufferConfig(backup="backup.jsonl"), tmp_path)
    assert line in file.read_text()


def test_reopening_removes_done_groups(place_of: Callable[[str], Place]) -> None:
    place = place_of("queue-jsonl")
    first = place.open()
    first.put(make_groups(50))
    first.acknowledge(ids(first.take(49)))
    first.close()
    before = (place.folder / "backup.jsonl").stat().st_size
    place.open().close()
    assert (place.folder / "backup.jsonl").stat().st_size < before / 10


def test_rows_of_done_groups_keep_only_their_id(place_of: Callable[[str], Place]) -> None:
    place = place_of("queue-sqlite")
    first = place.open()
    first.put(make_groups(3))
    first.acknowledge(ids(first.take(2)))
    first.close()
    with sqlite3.connect(place.folder / "backup.db") as rows:
        found = rows.execute("SELECT id, content IS NULL FROM groups ORDER BY number").fetchall()
    assert found == [("g0", 1), ("g1", 1), ("g2", 0)]


@pytest.mark.parametrize("kind", BACKUPS)
def test_two_processes_do_not_share_a_backup(
    kind: str, place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_LOCK_TIMEOUT_SECONDS", 0.1)
    place = place_of(kind)
    place.open().put(make_groups(1))
    with pytest.raises(StoreError, match="in use by another process"):
        place.open()
    with pytest.raises(StoreError, match="in use by another process"):
        place.clear()


def _of_format_7(path: Path) -> None:
    with sqlite3.connect(path) as rows:
        rows.execute("PRAGMA user_version = 7")


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        (
            "backup.db",
            lambda path: path.write_text("not a database, but long enough to be read as one " * 20),
            r"backup\.db cannot be read or written: file is not a database",
        ),
        ("backup.db", _of_format_7, "format 7"),
        ("backup.jsonl", Path.mkdir, r"Set `buffer\.backup` to a file"),
    ],
    ids=["not a database", "another format", "a folder"],
)
def test_a_backup_that_cannot_be_used_is_refused(
    name: str, make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make(tmp_path / name)
    with pytest.raises(StoreError, match=message):
        open_buffer(QueueBufferConfig(backup=name), tmp_path)


@pytest.mark.parametrize("path", ["backup", "backup.txt", "backup.parquet"])
def test_the_suffix_must_name_the_format(path: str) -> None:
    with pytest.raises(ValidationError, match=r"names no file format; end the path with \.db"):
        TypeAdapter(Section).validate_python({"type": "queue", "backup": path})
