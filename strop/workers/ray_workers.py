"""Workers that are Ray actors, their log files, and their nodes: loss, bundles of resources, calls as tasks.

Ray declares a node dead about a minute after it has fallen silent, and about 15 s after its raylet was killed. A
watch connects to the raylet's port instead, once a second: as long as the node and its network work, its kernel
accepts the connection, whatever the processes of the node compute.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from types import ModuleType
from typing import Any, Literal, TypeVar

from strop.errors import ConfigError, NodeLostError, PlacementError, WorkerDiedError
from strop.workers.network import node_address, shut_down_connections
from strop.workers.ray_runtime import describe_free_resources, import_ray
from strop.workers.waiting import TimedWait
from strop.workers.worker import SilenceClock, WorkerTarget, last_lines

_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.5
"""Interval at which the loss of an actor's node is looked for while its reply is awaited."""
_NAME_RELEASE_SECONDS = 15.0
"""Longest time for which a killed actor may still hold its name."""
_PROBE_SECONDS = 1.0
"""Longest wait for the answer to one connection."""
_PAUSE_SECONDS = 0.8
"""Time between two connections; with the wait for the answer it is less than a `SilenceClock` counts for one look."""
_Answer = Literal["alive", "ended", "silent"]
_watches: weakref.WeakValueDictionary[tuple[str, float], NodeWatch] = weakref.WeakValueDictionary()
_lock = threading.Lock()
_PLACED = "CREATED"
_PROBE_THREADS = 16
_own: BundleSlot | None = None
T = TypeVar("T")
_RETRIES = 3
"""Repetitions of a task whose process or node is lost."""


@dataclass(frozen=True, slots=True)
class ActorLog:
    """The `log` folder of a run, with one file per actor."""

    run_folder: Path
    """The run's folder, absolute."""
    per_node: bool
    """Whether each node's actors write into a subfolder with the node's address."""

    def redirect_output(self, name: str) -> None:
        """Append stdout and stderr of this process to its log file. Does nothing if this node does not see
        the run's folder."""
        if not self.run_folder.is_dir():
            return
        folder = self.run_folder / "log" / (node_address() if self.per_node else "")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.log").open("a") as file:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(file.fileno(), stream.fileno())

    def last_output(self, name: str) -> str:
        """The last lines of an actor's log file; of the node that wrote last, with a folder per node."""
        files = (self.run_folder / "log").glob(f"*/{name}.log" if self.per_node else f"{name}.log")
        return last_lines(max(files, key=lambda file: file.stat().st_mtime, default=None))


class RayWorker:
    """A `Worker` on any node of the cluster. Ray ends it when the process that started it ends."""

    def __init__(
        self,
        name: str,
        serve: WorkerTarget,
        *,
        cpus: float,
        gpus: float,
        timeout_seconds: float,
        node_timeout_seconds: float,
        log: ActorLog | None = None,
        bundle: BundleSlot | None = None,
    ) -> None:
        """`bundle` holds the actor; None leaves the choice of the node to Ray.

        Raises PlacementError if no node has enough free resources in time, ConfigError if another actor keeps the name.
        """
        self.name = name
        self._log = log
        self._ray = import_ray()
        wait = TimedWait(timeout_seconds)
        options = self._ray.remote(_WorkerActor).options(
            name=name,
            num_cpus=cpus,
            num_gpus=gpus,
            max_concurrency=3,
            scheduling_strategy="DEFAULT" if bundle is None else bundle.strategy,
        )
        self._actor = self._create_actor(options, log, bundle, timeout_seconds)
        try:
            started = self._ray.get(self._actor.start.remote(serve), timeout=wait.remaining_seconds)
        except self._ray.exceptions.GetTimeoutError as error:
            self.kill()
            raise PlacementError(
                f"cluster: no node had {cpus:g} CPUs and {gpus:g} GPUs free for {name} within "
                f"{timeout_seconds:g} s; free now: {describe_free_resources(self._ray)}. End other programs "
                "on the cluster, add nodes, or write a larger cluster.start_timeout_seconds; with --here the "
                "run needs no cluster. If enough was free before, Ray did not start the process: see "
                "raylet*.out in Ray's folder of logs on the nodes, by default /tmp/ray/session_latest/logs."
            ) from error
        except self._ray.exceptions.RayActorError:
            # It was killed during its start; the next `send` or `receive` raises WorkerDiedError.
            started = 0, ""
        self.pid: int = started[0]
        node = living_nodes().get(started[1])
        self._watch: NodeWatch | None = None if node is None else watch_node(node, node_timeout_seconds)
        """The watch of its node; None for a node that was lost during the start."""
        self._pending_reference: Any = None
        """Ray's reference to the next message, once it was requested."""
        self._silence = SilenceClock()
        self._ping: Any = None
        """Ray's reference to the reply that is the next sign of life."""
        self._ping_lock = Lock()

    def send(self, message: object) -> None:
        self._get(self._actor.put.remote(message))

    def receive(self) -> Any:
        message = self._get(self._request_next())
        self._pending_reference = None
        if isinstance(message, _WorkerExited):
            raise WorkerDiedError(self.name, message.reason, killed=False)
        return message

    def poll(self, seconds: float) -> bool:
        wait = TimedWait(seconds)
        while not self._ray.wait([self._request_next()], timeout=min(_LOOK_SECONDS, wait.remaining_seconds))[
            0
        ]:
            if self._node_loss() is not None:
                return True
            if wait.remaining_seconds <= 0:
                return False
        return True

    def silent_seconds(self) -> float:
        if (lost := self._node_loss()) is not None:
            raise lost
        with self._ping_lock:
            heard = self._ping is not None and bool(self._ray.wait([self._ping], timeout=0)[0])
            if heard:
                self._get(self._ping)
            if heard or self._ping is None:
                self._ping = self._actor.ping.remote()
        return self._silence.look(heard=heard)

    def kill(self) -> None:
        self._ray.kill(self._actor)

    def last_output(self) -> str:
        return "" if self._log is None else self._log.last_output(self.name)

    def _request_next(self) -> Any:
        if self._pending_reference is None:
            self._pending_reference = self._actor.take.remote()
        return self._pending_reference

    def _node_loss(self, *, confirm: bool = False) -> NodeLostError | None:
        """The loss of its node, or None; with `confirm` after one more look at the node."""
        if self._watch is None:
            return None
        fault = self._watch.confirm() if confirm else self._watch.loss
        return None if fault is None else NodeLostError(self.name, str(self._watch.node), fault)

    def _get(self, reference: Any) -> Any:
        while not self._ray.wait([reference], timeout=_LOOK_SECONDS)[0]:
            if (lost := self._node_loss()) is not None:
                raise lost
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            if (lost := self._node_loss(confirm=True)) is not None:
                raise lost from error
            reason = f"with its actor: {str(error).splitlines()[0].rstrip('.')}"
            raise WorkerDiedError(self.name, reason, killed=True) from error

    def _create_actor(
        self, options: Any, log: ActorLog | None, bundle: BundleSlot | None, timeout_seconds: float
    ) -> Any:
        """Retries while an actor of the same name, from an earlier start of the run, is still being ended."""
        wait = TimedWait(min(timeout_seconds, _NAME_RELEASE_SECONDS))
        while True:
            try:
                return options.remote(self.name, Path.cwd(), log, bundle)
            except (ValueError, self._ray.exceptions.ActorAlreadyExistsError) as error:
                if wait.remaining_seconds <= 0:
                    raise ConfigError(
                        f"cluster: another run has an actor {self.name!r} in this namespace. Write another "
                        "`cluster.namespace`, or other names (`cluster.explorer_name`, "
                        "`cluster.trainer_name`, `buffer.name`)."
                    ) from error
                time.sleep(_RETRY_SECONDS)


@dataclass(frozen=True, slots=True)
class _WorkerExited:
    """The last message of a worker whose target has returned or raised."""

    reason: str


class _WorkerActor:
    """The worker's process: the target runs in a thread, and Ray calls the methods in other threads."""

    def __init__(self, name: str, workdir: Path, log: ActorLog | None, bundle: BundleSlot | None) -> None:
        """`workdir` is the base of the run file's relative paths, if this node has that folder."""
        _set_own_bundle(bundle)
        if log is not None:
            log.redirect_output(name)
        if workdir.is_dir():
            os.chdir(workdir)
            sys.path.insert(0, str(workdir))
        if not import_ray().get_gpu_ids():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray shows all GPUs to an actor that requested none
        self._incoming: SimpleQueue[Any] = SimpleQueue()
        self._outgoing: SimpleQueue[Any] = SimpleQueue()

    def start(self, serve: WorkerTarget) -> tuple[int, str]:
        """Start the target; returns this process's id, and Ray's id of its node."""
        channel = _QueueChannel(self._incoming.get, self._outgoing.put)
        Thread(target=self._serve, args=(serve, channel), daemon=True).start()
        return os.getpid(), str(import_ray().get_runtime_context().get_node_id())

    def put(self, message: object) -> None:
        """Deliver a message to the target."""
        self._incoming.put(message)

    def ping(self) -> None:
        """Return, which shows that the process is alive."""

    def take(self) -> Any:
        """Wait for the target's next message."""
        return self._outgoing.get()

    def _serve(self, serve: WorkerTarget, channel: _QueueChannel) -> None:
        reason = "by itself"
        try:
            serve(channel)
        except BaseException:  # noqa: BLE001  (the parent raises it)
            reason = f"with an error:\n{traceback.format_exc()}"
        self._outgoing.put(_WorkerExited(reason))


@dataclass(frozen=True, slots=True)
class _QueueChannel:
    """A `Channel` inside the actor. Ray ends this process when the parent process ends."""

    receive: Callable[[], Any]
    send: Callable[[object], None]


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

    def probe(self) -> _Answer:
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


def watch_node(node: RayNode, timeout_seconds: float) -> NodeWatch:
    """The watch of a node, one per node and process."""
    with _lock:
        watch = _watches.get((node.id, timeout_seconds))
        if watch is None:
            watch = _watches[node.id, timeout_seconds] = NodeWatch(node, timeout_seconds)
        return watch


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


def own_bundle() -> BundleSlot | None:
    """The bundle in which this process is placed; None if it is in none."""
    return _own


def _set_own_bundle(slot: BundleSlot | None) -> None:
    """Record the bundle in which this process was placed."""
    global _own
    _own = slot


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
