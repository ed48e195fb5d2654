"""The watch that notices when a node of a Ray cluster is lost."""

from __future__ import annotations

import socket
from contextlib import closing, suppress

import pytest

from strop.workers import ray_workers
from strop.workers.network import LOOPBACK
from strop.workers.ray_workers import NodeWatch, RayNode, watch_node
from strop.workers.waiting import wait_until


def node(port: int, name: str = "a") -> RayNode:
    return RayNode(name, "host", LOOPBACK, port)


def test_a_connection_shows_whether_a_node_answers():
    with closing(socket.create_server((LOOPBACK, 0), backlog=0)) as server:
        listening = node(server.getsockname()[1])
        assert listening.probe() == "alive"
        # Linux does not answer a connection for which a full queue has no place, like a machine that is off.
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.connect(server.getsockname())
        assert listening.probe() == "silent"
        for each in waiting:
            each.close()
    assert listening.probe() == "ended"


class Scripted(RayNode):
    """A node with fixed answers, of which the last one is repeated."""

    answers: list[str]

    def probe(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(ray_workers, "_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(ray_workers, "living_nodes", lambda: {"a": None})

    def watch(*answers: str, timeout_seconds: float = 0.2) -> NodeWatch:
        found = Scripted("a", "host", LOOPBACK, 1)
        object.__setattr__(found, "answers", list(answers))
        return NodeWatch(found, timeout_seconds)

    return watch


def becomes_lost(watch: NodeWatch) -> bool:
    return wait_until(lambda: watch.loss is not None, "", timeout_seconds=600, interval_seconds=0.01)


def test_a_node_that_falls_silent_or_whose_raylet_ends_is_lost(scripted):
    silent = scripted("alive", "silent")
    assert becomes_lost(silent) and silent.loss == "which has given no sign of life for 0.2 s"
    ended = scripted("alive", "silent", "alive", "ended")
    assert becomes_lost(ended) and ended.loss == "whose raylet has ended"


def test_a_node_that_never_answers_is_not_lost_unless_ray_says_so(scripted, monkeypatch):
    """A firewall may keep this process from the port."""
    watch = scripted("silent", timeout_seconds=0.01)
    assert not wait_until(lambda: watch.loss is not None, "", timeout_seconds=0.3, interval_seconds=0.05)
    assert watch.confirm() is None
    monkeypatch.setattr(ray_workers, "living_nodes", dict)
    assert watch.confirm() == "which Ray has declared dead"


def test_a_short_silence_is_no_loss(scripted):
    watch = scripted("alive", "silent", "alive", "silent", "alive", timeout_seconds=600)
    assert not wait_until(lambda: watch.loss is not None, "", timeout_seconds=0.3, interval_seconds=0.05)


def test_workers_of_one_node_share_its_watch():
    with closing(socket.create_server((LOOPBACK, 0))) as server:
        port = server.getsockname()[1]
        first = watch_node(node(port), 20.0)
        assert watch_node(node(port), 20.0) is first
        assert watch_node(node(port, "b"), 20.0) is not first
