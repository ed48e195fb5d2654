"""Atomic file writes."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strop.workers.child_process import child_environment
from strop.workers.files import atomic_path, atomic_write, temporary_path


def test_a_file_is_replaced_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in ("{}\n", "größer\n"):
        atomic_write(path, content)
        assert path.read_text(encoding="utf-8") == content
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o644)
    atomic_write(path, "token", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_writers_of_one_file_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, contents = tmp_path / "a", [str(number) * 20_000 for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(5):
            list(threads.map(lambda content: atomic_write(path, content), contents))
            assert path.read_text() in contents
    with atomic_path(path) as first, atomic_path(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from strop.workers.files import atomic_path, temporary_path

temporary_path(Path(sys.argv[1]) / "model").mkdir()
with atomic_path(Path(sys.argv[1]) / "a") as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_was_writing_is_removed_and_nothing_else(tmp_path: Path) -> None:
    killed = [sys.executable, "-c", KILLED, str(tmp_path)]
    assert subprocess.run(killed, env=child_environment(), check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    kept = [".b.tmp", ".b.ffffff-1-00000000.tmp", temporary_path(tmp_path / "b").name]
    for name in kept:
        (tmp_path / name).touch()
    atomic_write(tmp_path / "b", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"b", *kept}


def test_the_old_content_stays_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(OSError, match="full"), atomic_path(path) as temporary:
        temporary.write_text("ne")
        raise OSError("the disk is full")
    assert path.read_text() == "old"
