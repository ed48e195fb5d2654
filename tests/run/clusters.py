"""A Ray cluster of several nodes on this machine, and its actors, for tests."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray._private import state
from ray.cluster_utils import Cluster


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

    def wait_until_free(self, seconds: float = 600) -> None:
        """Wait until no actor of an earlier test holds a CPU; call it inside `joined`."""
        deadline = time.monotonic() + seconds
        while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
            assert time.monotonic() < deadline, f"actors still hold CPUs: {ray.available_resources()}"
            time.sleep(0.1)

    def add(self, cpus: int) -> Any:
        return self.cluster.add_node(num_cpus=cpus)

    def remove(self, node: Any) -> None:
        """As where the machine is switched off: the raylet, and all that it has started, at once."""
        (raylet,) = node.all_processes["raylet"]
        process = psutil.Process(raylet.process.pid)
        for one in (process, *process.children(recursive=True)):
            one.kill()
        self.cluster.remove_node(node, allow_graceful=False)

    def node_of(self, name: str) -> Any:
        """Return the node of the actor with this name."""
        id = _actor(name)["Address"]["NodeID"]
        return next(node for node in self.cluster.list_all_nodes() if node.node_id == id)


@contextmanager
def nodes(*cpus: int) -> Iterator[Nodes]:
    """Cluster whose nodes have the given numbers of CPUs; the first node is the head."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], "include_dashboard": False})
    try:
        for count in cpus[1:]:
            cluster.add_node(num_cpus=count)
        yield Nodes(cluster)
    finally:
        cluster.shutdown()


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
