"""A Ray cluster of several nodes on this machine, and its actors, for tests.

A module that uses the fixture `head` names this one in its `pytest_plugins`, so that there is one cluster a session.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray._private import services, state
from ray.cluster_utils import Cluster

from strop.workers.waiting import wait_until


@dataclass(frozen=True)
class Nodes:
    """Each has a raylet of its own, and on this machine they all see the same disk."""

    cluster: Cluster

    @property
    def address(self) -> str:
        return self.cluster.address

    def section(self, **more: Any) -> dict[str, Any]:
        """A run file's `cluster`."""
        return {"type": "ray", "address": self.address, **more}

    @contextmanager
    def joined(self, run: str = "small") -> Iterator[None]:
        """Inside, this process belongs to it too, in the namespace of that run."""
        ray.init(self.address, namespace=f"strop/{run}", log_to_driver=False, logging_level=logging.ERROR)
        try:
            yield
        finally:
            ray.shutdown()

    def wait_until_free(self) -> None:
        """Wait until no actor of an earlier test holds a CPU; call it inside `joined`."""
        self.wait(
            lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"],
            "actors still hold CPUs",
        )

    def wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Wait for a condition; only a hang reaches the limit."""
        assert wait_until(condition, otherwise, timeout_seconds=600, interval_seconds=0.1), otherwise

    @contextmanager
    def added(self, *cpus: int, gpus: int = 0) -> Iterator[list[Any]]:
        """Nodes with these numbers of CPUs, until the end of the context or until a test removes them."""
        added = [self.add(count, gpus) for count in cpus]
        try:
            yield added
        finally:
            for node in set(self.cluster.list_all_nodes()) - {self.cluster.head_node}:
                self.cluster.remove_node(node)
            with self.joined():
                self.wait(lambda: sum(node["Alive"] for node in ray.nodes()) == 1, "nodes are still there")

    def add(self, cpus: int, gpus: int = 0) -> Any:
        with unhurried_start():
            return self.cluster.add_node(num_cpus=cpus, num_gpus=gpus)

    def remove(self, node: Any) -> None:
        """As where the machine is switched off: the raylet, and all that it has started, at once."""
        (raylet,) = node.all_processes["raylet"]
        process = psutil.Process(raylet.process.pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # it has ended with the raylet
                one.kill()
        self.cluster.remove_node(node, allow_graceful=False)

    def node_of(self, name: str) -> Any:
        """Return the node of the actor with this name."""
        id = _actor(name)["Address"]["NodeID"]
        return next(node for node in self.cluster.list_all_nodes() if node.node_id == id)


@contextmanager
def unhurried_start() -> Iterator[None]:
    """Have Ray wait for a starting node until only a hang is left: its own 30 s are too short on a busy machine."""
    get_node, wait_for_node = services.get_node, services.wait_for_node

    def get(address: str, node: str) -> Any:
        found: list[Any] = []

        def is_known() -> bool:
            with suppress(RuntimeError):  # Ray's controller does not answer yet, or does not know the node
                found.append(get_node(address, node))
            return bool(found)

        assert wait_until(is_known, "Ray's node", timeout_seconds=600, interval_seconds=0.1)
        return found[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_node", get)
        patch.setattr(
            services, "wait_for_node", lambda address, socket, _: wait_for_node(address, socket, 600)
        )
        yield


@pytest.fixture(scope="session")
def head() -> Iterator[Nodes]:
    """The cluster of this session. Its first node has no CPUs; each test adds the nodes that it needs."""
    # Ray starts workers with niceness 15, and then two busy processes of other tests leave them a thirtieth of a core.
    options = {"num_cpus": 0, "include_dashboard": False, "_system_config": {"worker_niceness": 0}}
    with unhurried_start():
        cluster = Cluster(initialize_head=True, head_node_args=options)
    try:
        yield Nodes(cluster)
    finally:
        cluster.shutdown()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test what Ray's raylets wrote: whether a process was started, and when it registered."""
    report = yield
    head = item.funcargs.get("head") if isinstance(item, pytest.Function) else None
    if report.failed and isinstance(head, Nodes):
        assert head.cluster.head_node is not None
        logs = Path(head.cluster.head_node.get_logs_dir_path())
        lines = (line for file in sorted(logs.glob("raylet*.out")) for line in file.read_text().splitlines())
        told = [line for line in lines if "worker_pool.cc" in line or " W " in line or " E " in line]
        load = f"load {os.getloadavg()}, {psutil.virtual_memory().available >> 20} MB available"
        report.sections.append(("Ray's raylets", "\n".join([load, *told[-60:]])))
    return report


def pid_of(name: str) -> int:
    """Return the process id of a living actor."""
    return int(_actor(name)["Pid"])


def kill(name: str) -> bool:
    """SIGKILL the process of an actor, if it is there; whether it was. One that is being placed has none yet:
    its number is 0, which to the system is all of this process's own group."""
    try:
        pid = int(_actor(name)["Pid"])
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
    except (ValueError, ProcessLookupError):
        return False
    return pid > 0


def _actor(name: str) -> dict[str, Any]:
    """Ray's entry of a living actor. Raises ValueError where there is none."""
    return dict(state.actors(ray.get_actor(name)._actor_id.hex()))
