"""One run at a time in a run folder: locks, their holders, and archived folders."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

import strop
from strop.errors import RunFolderError
from strop.runs import lock as lock_module
from strop.runs.folder import LOCK_FILE, RunFolder
from strop.runs.lock import LockHolder, lock_run

HOLD = """
import subprocess, sys, time
from pathlib import Path
from strop.runs.folder import RunFolder
from strop.runs.lock import lock_run

with lock_run(RunFolder(Path(sys.argv[1])), mode="both", is_distributed=True) as locks:
    child = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=locks, stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(600)
"""
ACTOR = """
import sys, time
from pathlib import Path
from strop.runs.lock import lock_actor

with lock_actor(Path(sys.argv[1])), lock_actor(Path(sys.argv[1])):
    print(0, flush=True)
    time.sleep(float(sys.argv[2]))
"""


@contextmanager
def process_of(script: str, folder: Path, seconds: float = 0) -> Iterator[tuple[subprocess.Popen, int]]:
    """A process that holds locks, and the number that it prints then: of `HOLD` the id of a child process, which
    has inherited them and lives for some seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(folder), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(strop.__file__).parents[1])},
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def lock(folder: Path, mode: str = "both", *, is_distributed: bool = False):
    return lock_run(RunFolder(folder), mode=mode, is_distributed=is_distributed)


@pytest.mark.parametrize("resume", ["auto", "never"])
def test_a_second_start_is_refused_with_process_and_host_and_runs_after_the_first(values, resume):
    run = strop.load(values(resume=resume, trainer__duration="1 steps", data__eval=[], evaluate={}))
    folder = run.run.folder_path
    with process_of(HOLD, folder) as (process, _):
        with pytest.raises(RunFolderError) as caught:
            strop.train(run)
        assert f"is in use by process {process.pid} on {socket.gethostname()}, since 20" in str(caught.value)
        assert {path.name for path in folder.iterdir()} == {LOCK_FILE, ".explorer.lock"}
    assert json.loads((folder / LOCK_FILE).read_text())["pid"] == process.pid, "it was killed"
    assert strop.train(run).steps == 1
    assert not (folder / LOCK_FILE).exists()


def test_a_folder_in_use_by_this_process_is_refused(tmp_path):
    with lock(tmp_path), pytest.raises(RunFolderError, match=f"process {os.getpid()} on"), lock(tmp_path):
        pass
    with lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_separate_explorer_and_a_separate_trainer_share_a_folder_and_a_whole_run_does_not(tmp_path):
    with lock(tmp_path, "train", is_distributed=True), lock(tmp_path, "explore", is_distributed=True):
        for mode in ("train", "explore", "both"):
            with pytest.raises(RunFolderError, match="in use"), lock(tmp_path, mode, is_distributed=True):
                pass


def test_child_processes_of_a_killed_run_hold_its_lock_until_they_end(tmp_path, monkeypatch):
    with process_of(HOLD, tmp_path, 600) as (process, child):
        process.kill()
        process.wait()
        with monkeypatch.context() as patch, pytest.raises(RunFolderError, match="child processes still run"):
            patch.setattr(lock_module, "_ENDING_TIMEOUT_SECONDS", 0.0)
            with lock(tmp_path):
                pass
        waits = at_first_wait(monkeypatch, lambda: os.kill(child, signal.SIGKILL))
        with lock(tmp_path):
            assert waits


def at_first_wait(monkeypatch: pytest.MonkeyPatch, event: Callable[[], object]) -> list[float]:
    """Have something happen while a start waits for a lock; the waits of the start, in seconds."""
    waits, sleep = [], time.sleep

    def wait(seconds: float) -> None:
        if not waits:
            event()
        waits.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(lock_module, "time", SimpleNamespace(sleep=wait, monotonic=time.monotonic))
    return waits


def test_a_lock_whose_holder_has_not_written_its_name_yet_is_looked_at_again(tmp_path, monkeypatch):
    holder = LockHolder.current()
    with (tmp_path / LOCK_FILE).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waits = at_first_wait(monkeypatch, lambda: print(json.dumps(asdict(holder)), file=file, flush=True))
        with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()} on"), lock(tmp_path):
            pass
        assert waits


def test_a_lock_that_is_being_given_up_is_taken(tmp_path, monkeypatch):
    """Between its deletion and its end: the start has opened the file, and finds no name under which to read it."""
    file = (tmp_path / LOCK_FILE).open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    waits = at_first_wait(monkeypatch, file.close)
    read = LockHolder.read

    def late(path: Path) -> LockHolder | None:
        path.unlink()
        return read(path)

    monkeypatch.setattr(LockHolder, "read", late)
    with lock(tmp_path):
        assert waits


def test_a_start_waits_for_the_actors_of_an_earlier_one(tmp_path):
    with process_of(ACTOR, tmp_path, 1.0) as (process, _), lock(tmp_path):
        assert process.wait(600) == 0


def test_a_start_is_refused_while_actors_of_an_earlier_one_remain(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "_ENDING_TIMEOUT_SECONDS", 0.3)
    with process_of(ACTOR, tmp_path, 600) as (process, _):
        with pytest.raises(RunFolderError, match="in use by Ray actors of an earlier start"), lock(tmp_path):
            pass
        assert not (tmp_path / LOCK_FILE).exists()
        process.kill()
        process.wait()
        with lock(tmp_path):
            pass


@pytest.mark.parametrize("host", [socket.gethostname(), "elsewhere"])
def test_a_file_that_nobody_has_locked_blocks_nothing(tmp_path, host):
    (tmp_path / LOCK_FILE).write_text(json.dumps({"host": host, "pid": 1, "since": "yesterday"}))
    with lock(tmp_path):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_without_locks_in_the_file_system_the_named_holder_decides(tmp_path, monkeypatch):
    """A fake: `flock` fails as on a file system without locks."""

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    file = tmp_path / LOCK_FILE
    with (
        process_of(HOLD, tmp_path) as (process, _),
        pytest.raises(RunFolderError, match=f"process {process.pid}"),
        lock(tmp_path),
    ):
        pass
    with lock(tmp_path):
        pass
    file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "since": "yesterday"}))
    with pytest.raises(RunFolderError, match="process 1 on elsewhere"), lock(tmp_path):
        pass


def test_no_two_threads_hold_the_lock_at_the_same_time(tmp_path):
    owner, times, clashes = threading.Lock(), [], []

    def work() -> None:
        while len(times) < 200:
            with suppress(RunFolderError), lock(tmp_path / "run"):
                if owner.acquire(blocking=False):
                    times.append(1)
                    owner.release()
                else:
                    clashes.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) >= 200 and clashes == []


def test_an_archived_folder_leaves_the_lock_behind(tmp_path):
    folder = RunFolder(tmp_path / "run")
    (folder.path / "checkpoints").mkdir(parents=True)
    with lock(folder.path, is_distributed=True):
        archived = folder.archive_existing()
        assert archived is not None and [path.name for path in archived.iterdir()] == ["checkpoints"]
        with pytest.raises(RunFolderError, match="in use"), lock(folder.path):
            pass
        assert folder.archive_existing() is None, "it holds no files of a run"
        (folder.path / "checkpoints").mkdir()
        second = folder.archive_existing()
        assert second is not None and second != archived
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["run", archived.name, second.name])


def test_a_folder_with_other_files_is_never_renamed(values, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("thesis.tex").write_text("years of work")
    Path("run.yaml").touch()
    with pytest.raises(RunFolderError, match="holds other files than those of a run"):
        strop.train(strop.load(values(folder=".", resume="never")))
    assert sorted(path.name for path in (tmp_path / "project").iterdir()) == ["run.yaml", "thesis.tex"]
