"""Workers that are processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from strop.errors import WorkerDiedError
from strop.workers import worker as workers_module
from strop.workers.child_process import child_environment
from strop.workers.start import LocalPlacement, start_worker

from .workers import check_silence, echo, fail, sleep


@pytest.fixture
def started():
    workers = []

    def start(serve):
        workers.append(start_worker("a worker", serve, LocalPlacement()))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


def test_messages_of_any_type_come_back_in_order(started):
    worker = started(echo)
    assert worker.receive() == worker.pid != os.getpid()
    large = bytes(8_000_000)
    messages = [1, {"two": (3, None)}, "four"]
    for message in messages:
        worker.send(message)
    assert [worker.receive() for _ in messages] == messages
    assert not worker.poll(0.01)
    worker.send(large)
    assert worker.poll(600)
    assert worker.receive() == large


def test_a_stopped_worker_is_silent_until_it_continues(started):
    check_silence(started(echo))


def test_time_in_which_nobody_looks_is_no_silence(monkeypatch):
    """As after the suspension of a machine."""
    clock = iter([0.0, 1.0, 1000.0, 1001.0, 1002.0])
    monkeypatch.setattr(workers_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    silent = workers_module.SilenceClock()
    assert [silent.look(heard=heard) for heard in (False, False, False, True)] == [1.0, 3.0, 4.0, 0.0]


@pytest.mark.parametrize(
    ("serve", "last", "how"), [(echo, "enough", "with exit code 0"), (fail, 1, "with exit code 1")]
)
def test_the_end_of_a_worker_is_reported(started, serve, last, how, capfd):
    worker = started(serve)
    if serve is echo:
        worker.receive()
    worker.send(last)
    assert worker.poll(600)
    with pytest.raises(WorkerDiedError, match=rf"^a worker ended {how}$"):
        worker.receive()
    if serve is fail:
        assert "ValueError: what to do with 1?" in capfd.readouterr().err


def test_a_killed_worker_is_reported_by_receive_and_send(started):
    worker = started(sleep)
    assert worker.receive() == "good night"
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"ended by signal 9 \(Killed\)"):
        worker.receive()
    with pytest.raises(WorkerDiedError, match="by signal 9"):
        for _ in range(10):
            worker.send("morning")


def test_a_thread_that_waits_for_a_message_gets_the_end(started):
    worker, heard = started(sleep), []

    def listen():
        with pytest.raises(WorkerDiedError) as death:
            while True:
                heard.append(worker.receive())
        heard.append(str(death.value))

    thread = threading.Thread(target=listen)
    thread.start()
    while not heard:
        time.sleep(0.01)
    worker.kill()
    thread.join()
    assert heard == ["good night", "a worker ended by signal 9 (Killed)"]


_PARENT = """
import sys
import time
from strop.workers.start import LocalPlacement, start_worker
from tests.workers import workers
worker = start_worker("a worker", getattr(workers, sys.argv[1]), LocalPlacement())
worker.receive()
print(worker.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("serve", ["echo", "sleep"], ids=["waits for a message", "waits for something else"])
def test_a_worker_ends_when_its_parent_is_killed(serve):
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, serve],
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
        cwd=Path(__file__).parents[2],
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    with contextlib.suppress(psutil.NoSuchProcess):
        child.wait(600)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
