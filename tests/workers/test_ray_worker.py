"""Workers that are Ray actors."""

from __future__ import annotations

import os
import signal

import pytest

from strop.errors import PlacementError, WorkerDiedError
from strop.workers.start import RayPlacement, start_worker

from .workers import check_silence, echo, fail, sleep

ray = pytest.importorskip("ray")


pytest_plugins = ["tests.run.clusters"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module", autouse=True)
def cluster(head):
    with head.added(2), head.joined("workers"):
        yield


def test_an_actor_serves_and_its_errors_are_reported():
    few = RayPlacement(cpus=0.5)
    worker = start_worker("echo", echo, few)
    assert worker.receive() == worker.pid != os.getpid()
    assert ray.get_actor("echo")
    large = bytes(8_000_000)
    for message in (1, large):
        worker.send(message)
    assert worker.poll(600)
    assert worker.receive() == 1
    assert worker.receive() == large
    assert not worker.poll(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="echo ended with its actor"):
        worker.receive()
    with pytest.raises(WorkerDiedError):
        worker.send(2)
    worker.kill()
    again = start_worker("echo", echo, few)  # its name is free again
    assert again.receive() == again.pid != worker.pid
    again.send("enough")
    with pytest.raises(WorkerDiedError, match="echo ended by itself"):
        again.receive()
    again.kill()
    broken = start_worker("broken", fail, few)
    broken.send(1)
    with pytest.raises(WorkerDiedError, match=r"(?s)with an error:.*ValueError: what to do with 1\?"):
        broken.receive()
    broken.kill()


def test_a_stopped_actor_is_silent_until_it_continues():
    worker = start_worker("stopped", echo, RayPlacement(cpus=0.5))
    check_silence(worker)
    worker.kill()


def test_an_actor_for_which_no_node_has_resources_is_refused_in_time():
    with pytest.raises(
        PlacementError, match=r"no node had 64 CPUs and 0 GPUs free for large within 2 s; free now: "
    ):
        start_worker("large", sleep, RayPlacement(cpus=64, start_timeout_seconds=2))
