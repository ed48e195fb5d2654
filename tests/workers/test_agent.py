"""Workers that an agent, which another launcher has started, runs for a controller."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from strop.errors import NodeLostError, WorkerDiedError
from strop.workers import agents
from strop.workers.agents import AgentHub, serve_controller
from strop.workers.connection import Address
from strop.workers.network import LOOPBACK
from strop.workers.start import AgentPlacement, start_worker
from strop.workers.waiting import wait_until

from .workers import check_silence, echo, fail

NODE_TIMEOUT_SECONDS = 600.0
"""Longer than any pause of a busy machine: here an agent is lost by the end of its connection."""


class _AgentEnded(Exception):
    """Ends an agent of these tests as a lost node does: without a word to its controller."""


@contextmanager
def agent(address: Address, rank: int = 1) -> Iterator[threading.Event]:
    """An agent in a thread of this process, until the end of the context; setting the event ends it."""
    ended = threading.Event()

    def check() -> None:
        if ended.is_set():
            raise _AgentEnded

    def serve() -> None:
        with suppress(_AgentEnded):
            serve_controller(
                address,
                rank=rank,
                local_rank=0,
                node="there",
                node_timeout_seconds=NODE_TIMEOUT_SECONDS,
                check=check,
            )

    thread = threading.Thread(target=serve)
    thread.start()
    yield ended
    ended.set()
    thread.join()


def placement(hub: AgentHub, agents: int = 1) -> AgentPlacement:
    assert wait_until(
        lambda: len(hub.workers) == agents, "agents", timeout_seconds=600, interval_seconds=0.01
    )
    workers = {f"rank-{number}": worker for number, worker in enumerate(hub.workers, 1)}
    return AgentPlacement(hub, workers, local_rank=0, local_ranks=1)


@pytest.fixture
def hub() -> Iterator[AgentHub]:
    opened = AgentHub(LOOPBACK, NODE_TIMEOUT_SECONDS)
    yield opened
    opened.close()


def test_messages_come_back_in_order_whatever_their_size(hub, monkeypatch):
    monkeypatch.setattr(agents, "_CHUNK_BYTES", 1000)
    with agent(hub.address):
        worker = start_worker("rank-1", echo, placement(hub))
        pid = worker.receive()
        assert not worker.poll(0)
        for message in ("short", b"long" * 1000, {"a": [1.5]}):
            worker.send(message)
            assert worker.receive() == message
        worker.kill()
        with pytest.raises(WorkerDiedError, match=r"on node there by signal 9"):
            worker.receive()
        assert not psutil.pid_exists(pid)


def test_an_error_of_the_worker_ends_it_and_the_agent_serves_on(hub):
    with agent(hub.address):
        worker = start_worker("rank-1", fail, placement(hub))
        worker.send("it")
        with pytest.raises(WorkerDiedError, match="on node there with exit code 1") as error:
            worker.receive()
        assert not error.value.killed
        assert hub.lost_nodes == 0


@pytest.mark.slow
def test_a_stopped_worker_is_silent_although_its_agent_is_not(hub):
    with agent(hub.address):
        check_silence(start_worker("rank-1", echo, placement(hub)))


def test_a_lost_agent_is_a_lost_node(hub):
    with agent(hub.address) as ended:
        worker = start_worker("rank-1", echo, placement(hub))
        worker.receive()
        ended.set()
        with pytest.raises(NodeLostError, match="with its node there"):
            worker.receive()
        with pytest.raises(NodeLostError):
            worker.silent_seconds()
        worker.kill()
        assert hub.lost_nodes == 1
        assert hub.workers == []


def test_the_workers_end_with_their_controller():
    hub = AgentHub(LOOPBACK, NODE_TIMEOUT_SECONDS)
    with agent(hub.address, rank=2), agent(hub.address, rank=1):
        placed = placement(hub, 2)
        assert placed.ranks == 3
        assert [worker.launched_rank for worker in placed.workers.values()] == [1, 2]
        pids = [start_worker(name, echo, placed).receive() for name in placed.workers]
        hub.close()
        assert wait_until(
            lambda: not any(map(psutil.pid_exists, pids)),
            "the end",
            timeout_seconds=600,
            interval_seconds=0.01,
        )


def test_no_controller_listens(hub):
    address = hub.address
    hub.close()
    assert not serve_controller(
        address, rank=1, local_rank=0, node="there", node_timeout_seconds=1.0, check=lambda: None
    )
