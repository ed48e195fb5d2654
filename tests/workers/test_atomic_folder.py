"""Folders that are replaced: a kill at any moment leaves the old folder or the new one."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strop.workers import files as module
from strop.workers.child_process import child_environment
from strop.workers.files import atomic_folder, restore_folder

KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from strop.workers import files

path, moment, exchanges = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "exchange"
calls = 0

def counted(change):
    def call(*arguments, **more):
        global calls
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return change(*arguments, **more)
    return call

if not exchanges:
    files._exchange = lambda one, other: False
with files.atomic_folder(path) as temporary:
    for name in ("a", "b"):
        (temporary / name).write_text("new")
    files._exchange = counted(files._exchange)
    Path.rename = counted(Path.rename)
    shutil.rmtree = counted(shutil.rmtree)
    files.fsync_path = counted(files.fsync_path)
"""


def write(path: Path, text: str) -> None:
    with atomic_folder(path) as temporary:
        for name in ("a", "b"):
            (temporary / name).write_text(text)


def texts(path: Path) -> list[str]:
    return [(path / name).read_text() for name in ("a", "b")]


@pytest.fixture(params=["exchange", "two renames"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "two renames":
        monkeypatch.setattr(module, "_exchange", lambda one, other: False)
    return str(request.param)


def test_a_folder_is_replaced_and_nothing_else_is_left(tmp_path: Path, method: str) -> None:
    path = tmp_path / "deep" / "model"
    for text in ("old", "new"):
        write(path, text)
        assert texts(path) == [text, text]
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_old_folder(tmp_path: Path, method: str) -> None:
    path = tmp_path / "model"
    write(path, "old")
    with pytest.raises(OSError, match="full"), atomic_folder(path) as temporary:
        (temporary / "a").write_text("new")
        raise OSError("the disk is full")
    assert texts(path) == ["old", "old"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("method", ["exchange", "two renames"])
def test_a_kill_at_each_step_leaves_the_old_folder_or_the_new_one(tmp_path: Path, method: str) -> None:
    """The child process is killed before each call that changes or flushes a folder, among them both renames."""
    moment, was_missing = 0, False
    while True:
        path = tmp_path / str(moment) / "model"
        write(path, "old")
        child = subprocess.run(
            [sys.executable, "-c", KILLED, str(path), str(moment), method],
            env=child_environment(),
            timeout=600,
            check=False,
        )
        was_missing = was_missing or not path.exists()
        restore_folder(path)
        assert texts(path) in (["old", "old"], ["new", "new"]), moment
        write(path, "later")
        assert texts(path) == ["later", "later"]
        assert list(path.parent.iterdir()) == [path], moment
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        moment += 1
    assert moment >= 6
    assert was_missing == (method == "two renames"), "the kill between the two renames was among them"


def test_writers_of_one_folder_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            list(threads.map(lambda text: write(path, text), "1234"))
            assert texts(path) in [[text, text] for text in "1234"]
    assert list(tmp_path.iterdir()) == [path]


def test_an_exchange_is_possible_here(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not module._exchange(tmp_path / "one", tmp_path / "other"):
        pytest.skip("this file system cannot exchange two folders")
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["other"]


def test_an_exchange_with_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    if not module._exchange(tmp_path / "one", tmp_path / "one"):
        pytest.skip("this file system cannot exchange two folders")
    with pytest.raises(FileNotFoundError, match="other"):
        module._exchange(tmp_path / "one", tmp_path / "other")
