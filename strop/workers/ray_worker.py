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

from strop.errors import ConfigError, PlacementError, WorkerDiedError
from strop.workers.network import node_address
from strop.workers.ray_runtime import describe_free_resources, import_ray
from strop.workers.silence import SilenceClock
from strop.workers.waiting import TimedWait
from strop.workers.worker import WorkerTarget, last_lines

_RETRY_SECONDS = 0.5
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
        log: ActorLog | None = None,
        node_id: str | None = None,
    ) -> None:
        """`node_id` is Ray's id of the preferred node.

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
            scheduling_strategy=self._strategy(node_id),
        )
        self._actor = self._create_actor(options, log, timeout_seconds)
        try:
            self.pid: int = self._ray.get(self._actor.start.remote(serve), timeout=wait.remaining_seconds)
        except self._ray.exceptions.GetTimeoutError as error:
            self.kill()
            raise PlacementError(
                f"cluster: no node had {cpus:g} CPUs and {gpus:g} GPUs free for {name} within "
                f"{timeout_seconds:g} s; free now: {describe_free_resources(self._ray)}. End other programs "
                "on the cluster, add nodes, or write a larger cluster.start_timeout_seconds; with --here the "
                "run needs no cluster."
            ) from error
        except self._ray.exceptions.RayActorError:
            self.pid = (
                0  # it was killed during its start; the next `send` or `receive` raises WorkerDiedError
            )
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
        return bool(self._ray.wait([self._request_next()], timeout=seconds)[0])

    def silent_seconds(self) -> float:
        """See `Worker`."""
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

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            reason = f"with its actor: {str(error).splitlines()[0].rstrip('.')}"
            raise WorkerDiedError(self.name, reason, killed=True) from error

    @staticmethod
    def _strategy(node_id: str | None) -> Any:
        """Ray's own strategy, or one that prefers a node."""
        if node_id is None:
            return "DEFAULT"
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id, soft=True)

    def _create_actor(self, options: Any, log: ActorLog | None, timeout_seconds: float) -> Any:
        """Retries while an actor of the same name, from an earlier start of the run, is still being ended."""
        wait = TimedWait(min(timeout_seconds, _NAME_RELEASE_SECONDS))
        while True:
            try:
                return options.remote(self.name, Path.cwd(), log)
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

    def __init__(self, name: str, workdir: Path, log: ActorLog | None) -> None:
        """`workdir` is the base of the run file's relative paths, if this node has that folder."""
        if log is not None:
            log.redirect_output(name)
        if workdir.is_dir():
            os.chdir(workdir)
            sys.path.insert(0, str(workdir))
        if not import_ray().get_gpu_ids():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray shows all GPUs to an actor that requested none
        self._incoming: SimpleQueue[Any] = SimpleQueue()
        self._outgoing: SimpleQueue[Any] = SimpleQueue()

    def start(self, serve: WorkerTarget) -> int:
        """Start the target; returns this process's id."""
        channel = _QueueChannel(self._incoming.get, self._outgoing.put)
        Thread(target=self._serve, args=(serve, channel), daemon=True).start()
        return os.getpid()

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
