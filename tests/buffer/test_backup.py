"""Backups after a kill of their process at any moment, and invalid backups."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
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
        process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        lines = [line.split() for line in process.stdout if line.endswith("\n")]
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


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "backup.db").write_text("not a database, but long enough to be read as one " * 20)
    with pytest.raises(StoreError, match=r"backup\.db cannot be read or written: file is not a database"):
        open_buffer(QueueBufferConfig(backup="backup.db"), tmp_path)


def test_a_backup_in_another_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "backup.db") as rows:
        rows.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreError, match="format 7"):
        open_buffer(QueueBufferConfig(backup="backup.db"), tmp_path)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "backup.jsonl").mkdir()
    with pytest.raises(StoreError, match=r"Set `buffer\.backup` to a file"):
        open_buffer(QueueBufferConfig(backup="backup.jsonl"), tmp_path)


@pytest.mark.parametrize("path", ["backup", "backup.txt", "backup.parquet"])
def test_the_suffix_must_name_the_format(path: str) -> None:
    with pytest.raises(ValidationError, match=r"names no file format; end the path with \.db"):
        TypeAdapter(Section).validate_python({"type": "queue", "backup": path})
