"""Nodes of a Ray cluster: the watch of their loss, bundles of resources on them, and calls as tasks.

Ray declares a node dead about a minute after it has fallen silent, and about 15 s after its raylet was killed. A watch
connects to the raylet's port instead, once a second: as long as the node and its network work, its kernel accepts
the connection, whatever the processes of the node compute.
"""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeVar

from strop.workers.network import shut_down_connections
from strop.workers.ray_runtime import import_ray
from strop.workers.worker import SilenceClock

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


_PLACED = "CREATED"
_PROBE_THREADS = 16


@dataclass(frozen=True, slots=True)
class BundleGroup:
    """Bundles that Ray places on as few nodes as possible.

    Ray places those of a lost node on another node as soon as one has enough, and releases all when the process that
    has reserved them leaves the cluster.
    """

    handle: Any
    """Ray's placement group, which other processes of the cluster can use."""

    @classmethod
    def reserve(cls, bundles: Sequence[Mapping[str, float]]) -> BundleGroup:
        """Ask Ray for bundles, each with amounts by resource (`CPU`, `GPU`)."""
        import_ray()
        from ray.util.placement_group import placement_group

        amounts = [{name: amount for name, amount in bundle.items() if amount} for bundle in bundles]
        return cls(placement_group(amounts, strategy="PACK"))

    @property
    def is_placed(self) -> bool:
        """Whether every bundle is on a node, as far as Ray knows."""
        return bool(self._table()["state"] == _PLACED)

    @property
    def size(self) -> int:
        """Number of bundles."""
        return len(self._table()["bundles"])

    @property
    def nodes(self) -> dict[int, str]:
        """Ray's id of the node of each bundle; empty for one that has none."""
        return dict(sorted(self._table()["bundles_to_node_id"].items()))

    def responding_nodes(self) -> dict[int, str]:
        """`nodes` without bundles that have none, or are on one that does not respond, which Ray may not know yet."""
        living = living_nodes()
        nodes = {index: living[node] for index, node in self.nodes.items() if node in living}
        asked = list(dict.fromkeys(nodes.values()))
        with ThreadPoolExecutor(_PROBE_THREADS) as pool:
            answers = dict(zip(asked, pool.map(lambda node: node.probe(), asked), strict=True))
        return {index: node.id for index, node in nodes.items() if answers[node] == "alive"}

    def processes(self, index: int) -> int:
        """Number of processes with one CPU that a bundle can hold."""
        return int(self._table()["bundles"][index].get("CPU", 0))

    def _table(self) -> dict[str, Any]:
        from ray.util.placement_group import placement_group_table

        return dict(placement_group_table(self.handle))


@dataclass(frozen=True, slots=True)
class BundleSlot:
    """One bundle of a group, for the processes that are placed there."""

    group: BundleGroup
    index: int

    @property
    def strategy(self) -> Any:
        """Ray's scheduling strategy for an actor in this bundle."""
        import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self.group.handle, self.index)


_own: BundleSlot | None = None


def own_bundle() -> BundleSlot | None:
    """The bundle in which this process is placed; None if it is in none."""
    return _own


def set_own_bundle(slot: BundleSlot | None) -> None:
    """Record the bundle in which this process was placed."""
    global _own
    _own = slot


T = TypeVar("T")
_RETRIES = 3
"""Repetitions of a task whose process or node is lost."""


class RayExecutor(Executor):
    """Runs functions on any node of the cluster that this process belongs to, each on one CPU."""

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._pending: set[Any] = set()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Start a task. Its future raises `BrokenExecutor` for one that fails or is lost."""
        reference = self._ray.remote(fn).options(num_cpus=1, max_retries=_RETRIES).remote(*args, **kwargs)
        self._pending.add(reference)
        result: Future[T] = Future()

        def finish(found: Future[T]) -> None:
            self._pending.discard(reference)
            error = found.exception()
            if error is None:
                result.set_result(found.result())
            else:
                result.set_exception(BrokenExecutor(str(error).strip().splitlines()[-1]))

        reference.future().add_done_callback(finish)
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the tasks that have no result."""
        for reference in list(self._pending):
            self._ray.cancel(reference, force=True)
