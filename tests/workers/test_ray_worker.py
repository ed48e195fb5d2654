"""Workers that are Ray actors do what those of this machine do."""

from __future__ import annotations

import os
import signal

import pytest

from strop.errors import PlacementError, WorkerDied
from strop.workers.start import OnRay, start_worker

from .workers import echo, fail, sleep

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def test_an_actor_serves_and_its_faults_are_heard_of():
    few = OnRay(cpus=0.5)
    worker = start_worker("echo", echo, few)
    assert worker.receive() == worker.pid != os.getpid()
    assert ray.get_actor("echo")
    large = bytes(8_000_000)
    for message in (1, large):
        worker.send(message)
    assert worker.poll(60)
    assert worker.receive() == 1
    assert worker.receive() == large
    assert not worker.poll(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="echo ended with its actor"):
        worker.receive()
    with pytest.raises(WorkerDied):
        worker.send(2)
    worker.end()
    again = start_worker("echo", echo, few)  # its name is free again
    assert again.receive() == again.pid != worker.pid
    again.send("enough")
    with pytest.raises(WorkerDied, match="echo ended by itself"):
        again.receive()
    again.end()
    broken = start_worker("broken", fail, few)
    broken.send(1)
    with pytest.raises(WorkerDied, match=r"(?s)with an error:.*ValueError: what to do with 1\?"):
        broken.receive()
    broken.end()


def test_one_for_which_no_node_has_room_is_refused_in_time():
    with pytest.raises(
        PlacementError, match=r"no node had room for large \(64 CPUs, 0 GPUs\) in 2 s; free now: "
    ):
        start_worker("large", sleep, OnRay(cpus=64, start_timeout_seconds=2))
