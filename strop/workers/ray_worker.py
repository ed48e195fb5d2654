"""Workers that are Ray actors, and their log files."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from strop.errors import ConfigError, NodeLostError, PlacementError, WorkerDiedError
from strop.workers.network import node_address
from strop.workers.ray_nodes import BundleSlot, NodeWatch, living_nodes, set_own_bundle, watch_node
from strop.workers.ray_runtime import describe_free_resources, import_ray
from strop.workers.waiting import TimedWait
from strop.workers.worker import SilenceClock, WorkerTarget, last_lines

_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.5
"""Interval at which the loss of an actor's node is looked for while its reply is awaited."""
_NAME_RELEASE_SECONDS = 15.0
"""Longest time for which a killed actor may still hold its name."""


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
        """See `Worker`."""
        self._get(self._actor.put.remote(message))

    def receive(self) -> Any:
        """See `Worker`."""
        message = self._get(self._request_next())
        self._pending_reference = None
        if isinstance(message, _WorkerExited):
            raise WorkerDiedError(self.name, message.reason, killed=False)
        return message

    def poll(self, seconds: float) -> bool:
        """See `Worker`."""
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
        """See `Worker`."""
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
        """See `Worker`."""
        self._ray.kill(self._actor)

    def last_output(self) -> str:
        """See `Worker`."""
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
        set_own_bundle(bundle)
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
