"""A Ray cluster: joined, or started for the run; whether it has what the run wants, and who gets what."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from uuid import uuid4

from strop.config.schema import Run
from strop.config.schema.cluster import RayCluster
from strop.errors import MissingExtraError, PlacementError
from strop.run.apart.gpus import gpus_of
from strop.run.apart.part import Order
from strop.run.apart.place import CPUS, actor_name, place_of
from strop.run.apart.ray_part import RayPart
from strop.run.apart.ray_serve import MARK, Errand
from strop.run.folder import RunFolder
from strop.workers.ray_worker import import_ray, resources

_PAUSE_SECONDS = 0.5
_KNOCK_SECONDS = 10.0
_OR_HERE = "With --here the run needs no cluster."


@contextmanager
def open_ray_parts(
    run: Run, section: RayCluster, orders: Sequence[Order], restarts: int
) -> Iterator[list[RayPart]]:
    """The parts as actors of the cluster, which is left, or ended, with the context.

    Raises MissingExtraError without Ray, PlacementError for a cluster that is not there, too small or full,
    and ConfigError where an actor's name is taken.
    """
    gpus = gpus_of(run, section)
    folder = RunFolder.of(run).path.absolute()
    (folder / MARK).write_text(mark := uuid4().hex)
    with _joined(run, section) as ray:
        _wait_for_resources(ray, run, section)
        parts = []
        for order in orders:
            errand = Errand(order, folder, mark)
            place = place_of(run, section, gpus[order.name], cpus=CPUS[order.name])
            parts.append(RayPart(errand, actor_name(run, section, order.name), place, restarts))
        yield parts
        if section.timeline:
            path = folder / "monitor" / "timeline.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            ray.timeline(str(path))


@contextmanager
def _joined(run: Run, section: RayCluster) -> Iterator[ModuleType]:
    """Ray, joined to its cluster, or to one on this machine."""
    try:
        ray = import_ray()
    except MissingExtraError as error:
        raise MissingExtraError(f"{error}. {_OR_HERE}") from error
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
            "start --head`, name its address, or leave the key out: then one is started for the run. "
            f"{_OR_HERE}"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Raises OSError where nobody listens: Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition("//")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()


def _wait_for_resources(ray: ModuleType, run: Run, section: RayCluster) -> None:
    """A cluster that was there already may grow: it is waited for."""
    until = time.monotonic() + section.start_timeout_seconds if section.address else 0.0
    pool = run.rollout.pool
    cpus = 1 + run.trainer.engine.ranks + (pool.engines if pool else 0)
    while True:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fit = [node for node in alive if node.get("GPU", 0) >= section.gpus_per_node]
        found = sum(node.get("CPU", 0) for node in alive)
        if len(fit) >= section.nodes and found >= cpus:
            return
        if time.monotonic() >= until:
            break
        time.sleep(_PAUSE_SECONDS)
    if len(fit) < section.nodes:
        raise PlacementError(
            f"cluster: the run wants {section.nodes} nodes with {section.gpus_per_node} GPUs each, and of "
            f"the cluster's {len(alive)} nodes {len(fit)} have as many ({resources(ray)} in all). Start more "
            "with `ray start --address=...`, or write smaller cluster.nodes and cluster.gpus_per_node. "
            f"{_OR_HERE}"
        )
    raise PlacementError(
        f"cluster: the run wants {cpus} CPUs, one for the explorer and for each engine of its pool, and "
        f"one for each of the trainer's ranks; the cluster's {len(alive)} nodes have {found:g} in all. "
        f"Start more nodes with `ray start --address=...`, or write fewer ranks and engines. {_OR_HERE}"
    )
