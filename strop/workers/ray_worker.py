"""A worker that is a Ray actor."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import ModuleType
from typing import Any

from strop.errors import ConfigError, MissingExtraError, PlacementError, WorkerDied
from strop.workers.worker import Serve

_PAUSE_SECONDS = 0.5
_SKIPPED, _ALL = "RAY_DEDUP_LOGS_SKIP_REGEX", "."
"""What Ray does not repeat here of what its nodes say, such as twenty lines of an actor's death."""
_NAME_SECONDS = 15.0
"""So long an actor that was killed may keep its name."""


def import_ray() -> ModuleType:
    """Ray, which leaves this process's console alone. Raises MissingExtraError where it is not installed."""
    os.environ.setdefault(_SKIPPED, _ALL)
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            "cluster.type is ray, and Ray is not installed: pip install 'strop[ray]'"
        ) from error
    return ray


def resources(ray: ModuleType) -> str:
    """What is free on the cluster, in words."""
    there = ray.available_resources()
    return f"{there.get('CPU', 0):g} CPUs, {there.get('GPU', 0):g} GPUs"


def is_on_ray() -> bool:
    """Whether this process belongs to a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def node_address() -> str:
    """By which the other nodes of the cluster reach this one."""
    import_ray()
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Log:
    """The folder `log` of a run, with a file for each actor."""

    run: Path
    """The run's own folder, absolute."""
    by_node: bool
    """An actor's file is in a folder of its node's."""

    def take_over(self, name: str) -> None:
        """From now on all that this process says goes into its file. Where this node does not have the run's
        folder, none is made."""
        if not self.run.is_dir():
            return
        folder = self.run / "log" / (node_address() if self.by_node else "")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}.log").open("a") as file:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(file.fileno(), stream.fileno())


class RayWorker:
    """A `Worker` on any node of the cluster; Ray ends it where the process that started it ends."""

    def __init__(
        self,
        name: str,
        serve: Serve,
        *,
        cpus: float,
        gpus: float,
        timeout_seconds: float,
        log: Log | None = None,
    ) -> None:
        """Raises PlacementError where no node has room in time, ConfigError where the name stays taken."""
        self.name = name
        self._ray = import_ray()
        self._deadline = time.monotonic() + timeout_seconds
        wanted = self._ray.remote(_Actor).options(name=name, num_cpus=cpus, num_gpus=gpus, max_concurrency=3)
        self._actor = self._created(wanted, log)
        try:
            left = max(0.0, self._deadline - time.monotonic())
            self.pid: int = self._ray.get(self._actor.start.remote(serve), timeout=left)
        except self._ray.exceptions.GetTimeoutError as error:
            self.end()
            raise PlacementError(
                f"cluster: no node had room for {name} ({cpus:g} CPUs, {gpus:g} GPUs) in "
                f"{timeout_seconds:g} s; free now: {resources(self._ray)}. End what else runs there, add "
                "nodes, or set cluster.start_timeout_seconds higher; with --here the run needs no cluster."
            ) from error
        except self._ray.exceptions.RayActorError:
            self.pid = 0  # it was killed as it came up; who sends or receives hears of it
        self._coming: Any = None
        """What Ray will give for the next message, where that was asked for already."""

    def send(self, message: object) -> None:
        """Raises WorkerDied where nobody is there any more."""
        self._answer(self._actor.put.remote(message))

    def receive(self) -> Any:
        """Its next message. Raises WorkerDied once it has ended and nothing more comes."""
        asked = self._asked()
        message = self._answer(asked)
        self._coming = None
        if isinstance(message, _Over):
            raise WorkerDied(self.name, message.how, killed=False)
        return message

    def poll(self, seconds: float) -> bool:
        """Whether `receive` has something to give or to raise, within this time."""
        return bool(self._ray.wait([self._asked()], timeout=seconds)[0])

    def check(self) -> None:
        """Raises WorkerDied where its process has ended."""
        self._answer(self._actor.here.remote())

    def end(self) -> None:
        """Kill it."""
        self._ray.kill(self._actor)

    def _asked(self) -> Any:
        if self._coming is None:
            self._coming = self._actor.take.remote()
        return self._coming

    def _answer(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            how = f"with its actor: {str(error).splitlines()[0].rstrip('.')}"
            raise WorkerDied(self.name, how, killed=True) from error

    def _created(self, wanted: Any, log: Log | None) -> Any:
        """Of a run that goes on, one of the same name may just be dying."""
        deadline = min(self._deadline, time.monotonic() + _NAME_SECONDS)
        while True:
            try:
                return wanted.remote(self.name, Path.cwd(), log)
            except (ValueError, self._ray.exceptions.ActorAlreadyExistsError) as error:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"cluster: there is an actor {self.name!r} in this namespace already, of another "
                        "run. Write another `cluster.namespace`, or other names (`cluster.explorer`, "
                        "`cluster.trainer`, `buffer.name`)."
                    ) from error
                time.sleep(_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class _Over:
    """The last message: no more will come."""

    how: str


class _Actor:
    """The worker's process: it serves in a thread, beside which the other methods are called."""

    def __init__(self, name: str, workdir: Path, log: Log | None) -> None:
        """The run file's paths are relative to `workdir`, where this node has it."""
        if log is not None:
            log.take_over(name)
        if workdir.is_dir():
            os.chdir(workdir)
            sys.path.insert(0, str(workdir))
        if not import_ray().get_gpu_ids():
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where it has none, Ray would let it see all
        self._incoming: SimpleQueue[Any] = SimpleQueue()
        self._outgoing: SimpleQueue[Any] = SimpleQueue()

    def start(self, serve: Serve) -> int:
        """Begin; returns this process's number."""
        channel = _Queues(self._incoming.get, self._outgoing.put)
        Thread(target=self._serve, args=(serve, channel), daemon=True).start()
        return os.getpid()

    def put(self, message: object) -> None:
        """A message to the worker."""
        self._incoming.put(message)

    def here(self) -> None:
        """Says by its answer that the process is there."""

    def take(self) -> Any:
        """The worker's next one, waited for."""
        return self._outgoing.get()

    def _serve(self, serve: Serve, channel: _Queues) -> None:
        how = "by itself"
        try:
            serve(channel)
        except BaseException:  # noqa: BLE001  (it is the other side's to raise)
            how = f"with an error:\n{traceback.format_exc()}"
        self._outgoing.put(_Over(how))


@dataclass(frozen=True, slots=True)
class _Queues:
    """A `Channel`: the worker's end. Ray ends this process where nobody is there any more."""

    receive: Callable[[], Any]
    send: Callable[[object], None]
