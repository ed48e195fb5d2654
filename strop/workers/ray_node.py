"""Nodes of a Ray cluster, and the watch that notices when one of them is lost.

Ray declares a node dead about a minute after it has fallen silent, and about 15 s after its raylet was killed. A watch
connects to the raylet's port instead, once a second: as long as the node and its network work, its kernel accepts
the connection, whatever the processes of the node compute.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Literal

from strop.workers.network import shut_down_connections
from strop.workers.ray_runtime import import_ray
from strop.workers.silence import SilenceClock

_PROBE_SECONDS = 1.0
"""Longest wait for the answer to one connection."""
_PAUSE_SECONDS = 0.8
"""Time between two connections; with the wait for the answer it is less than a `SilenceClock` counts for one look."""

Answer = Literal["alive", "ended", "silent"]


@dataclass(frozen=True, slots=True)
class RayNode:
    """One node of the cluster."""

    id: str
    """Ray's id."""
    host: str
    """Host name."""
    address: str
    """Address at which the other nodes reach it."""
    port: int
    """Port there at which its raylet listens."""

    def __str__(self) -> str:
        return f"{self.host} ({self.address})"

    def probe(self) -> Answer:
        """Connect to the raylet: `ended` if no process listens at its port, `silent` without an answer."""
        try:
            socket.create_connection((self.address, self.port), timeout=_PROBE_SECONDS).close()
        except ConnectionRefusedError:
            return "ended"
        except OSError:
            return "silent"
        return "alive"


def living_nodes() -> dict[str, RayNode]:
    """The nodes that Ray has not declared dead, by id; one that has just been lost may be among them."""
    return {
        node["NodeID"]: RayNode(
            node["NodeID"], node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeManagerPort"]
        )
        for node in import_ray().nodes()
        if node["Alive"]
    }


class NodeWatch:
    """Watches one node from a thread, until the watch is no longer used or the node is lost."""

    def __init__(self, node: RayNode, timeout_seconds: float) -> None:
        """A node that has answered once, and then is silent for `timeout_seconds`, is lost."""
        self.node = node
        self._timeout = timeout_seconds
        self._clock: SilenceClock | None = None
        """Runs from the first answer on: a firewall may keep this process from the port."""
        self._loss: str | None = None
        self._look()
        threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True).start()

    @property
    def loss(self) -> str | None:
        """The sign that the node is lost, such as `whose raylet has ended`; None if it is not."""
        return self._loss

    def confirm(self) -> str | None:
        """`loss` after one more look, for a process that has lost a worker on the node."""
        if self._loss is None:
            self._look()
        if self._loss is None and self.node.id not in living_nodes():
            self._loss = "which Ray has declared dead"
        return self._loss

    def _look(self) -> None:
        answer = self.node.probe()
        if self._clock is None:
            self._clock = SilenceClock() if answer == "alive" else None
            return
        silent = self._clock.look(heard=answer == "alive")
        if answer == "ended":
            self._loss = "whose raylet has ended"
        elif silent > self._timeout:
            self._loss = f"which has given no sign of life for {self._timeout:g} s"
            shut_down_connections(self.node.address)


def _watch(reference: weakref.ref[NodeWatch]) -> None:
    while (watch := reference()) is not None and watch.loss is None:
        watch._look()
        del watch
        time.sleep(_PAUSE_SECONDS)


_watches: weakref.WeakValueDictionary[tuple[str, float], NodeWatch] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def watch_node(node: RayNode, timeout_seconds: float) -> NodeWatch:
    """The watch of a node, one per node and process."""
    with _lock:
        watch = _watches.get((node.id, timeout_seconds))
        if watch is None:
            watch = _watches[node.id, timeout_seconds] = NodeWatch(node, timeout_seconds)
        return watch
