"""One half of a run as an actor of a Ray cluster, seen from the launcher."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from strop.config.schema import Run
from strop.config.schema.cluster import RayCluster
from strop.errors import ConfigError, PlacementError, StropError
from strop.run.apart.part import Order, say
from strop.run.apart.ray_actor import Ended, PartActor
from strop.run.folder import RunFolder
from strop.workers.ray_worker import import_ray, resources

_PAUSE_SECONDS = 0.5
_KNOCK_SECONDS = 10.0


@contextmanager
def ray_cluster(run: Run, section: RayCluster) -> Iterator[ModuleType]:
    """Ray, joined to its cluster, or to one on this machine that ends with the context.

    Raises MissingExtraError without Ray, and PlacementError for a cluster that is not there or too small.
    """
    ray = import_ray()
    try:
        _knock(section.address)
        ray.init(
            address=section.address or "local",
            namespace=section.namespace or f"{run.project}/{run.name}",
            include_dashboard=None if section.address else False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise PlacementError(
            f"cluster.address: no Ray cluster answers at {section.address} ({error}). Start one with `ray "
            "start --head`, name its address, or leave the key out: then one is started for the run."
        ) from error
    try:
        _wait_for_nodes(ray, section)
        yield ray
        if section.timeline:
            path = RunFolder.of(run).path / "monitor" / "timeline.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            ray.timeline(str(path))
    finally:
        ray.shutdown()


class RayPart:
    """An actor, and another one where that died."""

    def __init__(
        self, ray: ModuleType, order: Order, run: Run, section: RayCluster, gpus: float, restarts: int
    ) -> None:
        """Place it. Raises ConfigError where its name is taken, and PlacementError where no node has room."""
        self._ray = ray
        self._order = order
        self._section = section
        self._gpus = gpus
        self._restarts = restarts
        self._restarted = 0
        self._logs = RunFolder.of(run).path.absolute() / "log"
        self._ended: Ended | None = None
        self._start()

    @property
    def is_done(self) -> bool:
        """Whether it has done all that it had to."""
        return self._ended is not None and self._ended.error is None

    def check(self) -> None:
        """Show what it said; place it again if it died. Raises what it ended of, if that is no help."""
        self._look(timeout_seconds=0)
        if self._ended is not None and self._ended.error is not None:
            error = StropError(self._ended.error)
            error.exit_code = self._ended.exit_code
            raise error

    def stop(self) -> None:
        """Ask it to save its state and end; it is not placed again."""
        self._restarts = 0
        if self._ended is None:
            self._actor.stop.remote()

    def wait(self) -> None:
        """Until it has ended, and all that it said is shown."""
        while self._ended is None:
            self._look(timeout_seconds=_PAUSE_SECONDS)

    def _start(self) -> None:
        name = self._order.name
        actor_name = self._section.explorer if name == "explorer" else self._section.trainer
        actor = self._ray.remote(PartActor).options(
            name=actor_name, num_cpus=1, num_gpus=self._gpus, max_concurrency=3
        )
        logs = (self._logs, actor_name, self._section.logs_by_node)
        try:
            self._actor: Any = actor.remote(self._order, *logs, Path.cwd())
            self._ray.get(self._actor.pid.remote(), timeout=self._section.start_timeout_seconds)
        except self._ray.exceptions.ActorAlreadyExistsError as error:
            raise ConfigError(
                f"cluster: there is an actor {actor_name!r} in this namespace already, of another run. Write "
                f"another `cluster.namespace`, or another name under `cluster.{name}`."
            ) from error
        except self._ray.exceptions.GetTimeoutError as error:
            raise PlacementError(
                f"cluster: no node had room for the {name} (1 CPU, {self._gpus:g} GPUs) in "
                f"{self._section.start_timeout_seconds:g} s; free now: {resources(self._ray)}. End what "
                "else runs there, add nodes, or set cluster.start_timeout_seconds higher."
            ) from error
        self._running = self._actor.run.remote()

    def _look(self, *, timeout_seconds: float) -> None:
        """Show what is new, and see whether it has ended."""
        if self._ended is not None:
            return
        exceptions = self._ray.exceptions
        try:
            ended = self._ray.wait([self._running], timeout=timeout_seconds)[0]
            for line in self._ray.get(self._actor.said.remote(), timeout=_PAUSE_SECONDS):
                say(self._order.name, line)
            if ended:
                self._ended = self._ray.get(self._running)
                self._ray.kill(self._actor)
        except exceptions.GetTimeoutError:
            return  # it is busy, and says the lines next time
        except exceptions.RayActorError as error:
            self._died(error)

    def _died(self, error: Exception) -> None:
        name, what = self._order.name, str(error).splitlines()[0]
        self._ray.kill(self._actor)  # dead as it is, Ray keeps its name for it while we know it
        if self._restarted >= self._restarts:
            self._ended = Ended(f"The {name}'s actor died, and is not started again: {what}", 1)
            return
        self._restarted += 1
        say(
            "run",
            f"The {name}'s actor died: {what} It is placed again and goes on from its last state "
            f"({self._restarted} of {self._restarts} times).",
        )
        self._start()


def _knock(address: str | None) -> None:
    """Raises OSError where nobody listens: Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition("//")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()


def _wait_for_nodes(ray: ModuleType, section: RayCluster) -> None:
    until = time.monotonic() + section.start_timeout_seconds if section.address else 0.0
    while True:
        alive = [node for node in ray.nodes() if node["Alive"]]
        fit = [node for node in alive if node["Resources"].get("GPU", 0) >= section.gpus_per_node]
        if len(fit) >= section.nodes:
            return
        if time.monotonic() >= until:
            raise PlacementError(
                f"cluster: the run wants {section.nodes} nodes with {section.gpus_per_node} GPUs each, and "
                f"of the cluster's {len(alive)} nodes {len(fit)} have as many ({resources(ray)} in all). "
                "Start more with `ray start --address=...`, or write smaller cluster.nodes and "
                "cluster.gpus_per_node."
            )
        time.sleep(_PAUSE_SECONDS)
