"""Ray clusters: connection or start, check of the resources, and the actors of a run's roles."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from strop.config.schema import Run
from strop.config.schema.cluster import RayClusterConfig
from strop.errors import MissingExtraError, PlacementError
from strop.run.distributed.placement import ROLE_CPUS, actor_name, actor_placement, engine_count, role_gpus
from strop.run.distributed.ray_actor import CLUSTER_MARKER, RayRoleSpec
from strop.run.distributed.ray_bundles import RunBundles, reserve_bundles
from strop.run.distributed.ray_role import RayRoleProcess
from strop.run.distributed.role import RoleSpec
from strop.run.distributed.supervisor import RoleSupervisor
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.workers.atomic_write import atomic_write
from strop.workers.ray_executor import RayExecutor
from strop.workers.ray_runtime import describe_free_resources, import_ray
from strop.workers.waiting import wait_until
from strop.workers.worker import WorkerTarget

_POLL_SECONDS = 0.5
_CONNECT_TIMEOUT_SECONDS = 10.0
_OR_HERE = "With --here the run needs no cluster."


@contextmanager
def open_ray_roles(
    run: Run, section: RayClusterConfig, specs: Sequence[RoleSpec], serve: WorkerTarget, max_restarts: int
) -> Iterator[list[RoleSupervisor]]:
    """Start the roles as actors; the end of the context leaves the cluster, or ends one that it started.

    Raises MissingExtraError without Ray, PlacementError for a cluster that cannot be reached or has too few
    resources, and ConfigError if another actor keeps a name.
    """
    folder = RunFolder.of(run).path.absolute()
    with reporting_write_errors(folder):
        atomic_write(folder / CLUSTER_MARKER, marker := uuid4().hex)
    with _connected(run, section) as ray:
        _wait_for_resources(ray, run, section)
        bundles = reserve_bundles(run, section)
        roles = []
        for spec in specs:
            start = partial(_start_role, run, section, RayRoleSpec(spec, folder, marker), serve, bundles)
            roles.append(RoleSupervisor(spec.name, start, max_restarts))
        yield roles
        if section.timeline:
            _write_timeline(ray, folder / "monitor" / "timeline.json")


def _start_role(
    run: Run, section: RayClusterConfig, spec: RayRoleSpec, serve: WorkerTarget, bundles: RunBundles
) -> RayRoleProcess:
    """Start the actor of a role, or start it again."""
    role = spec.spec.name
    name, slot = actor_name(run, section, role), bundles.slot(role, run.trainer.elastic)
    placement = actor_placement(
        run,
        section,
        role_gpus(run)[role],
        cpus=ROLE_CPUS[role],
        bundles={name: slot},
    )
    return RayRoleProcess(spec, serve, name, placement)


@contextmanager
def ray_workers(run: Run, section: RayClusterConfig, workers: int) -> Iterator[Executor]:
    """Workers on the nodes of the cluster, outside of the run's own actors. `workers` is not needed: a task waits for a
    free CPU. Raises what `open_ray_roles` raises without a cluster."""
    with _connected(run, section) as ray, RayExecutor(ray) as executor:
        yield executor


@contextmanager
def _connected(run: Run, section: RayClusterConfig) -> Iterator[ModuleType]:
    """Ray, connected to the cluster at `cluster.address`, or to a new one on this machine."""
    try:
        ray = import_ray()
    except MissingExtraError as error:
        raise MissingExtraError(f"{error}. {_OR_HERE}") from error
    try:
        _check_reachable(section.address)
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
            "start --head`, write its address, or remove the key: then a cluster is started for the run. "
            f"{_OR_HERE}"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _write_timeline(ray: ModuleType, path: Path) -> None:
    """Write Ray's timeline. Raises RunFolderError where it cannot be written."""
    with reporting_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(ray.timeline()))


def _check_reachable(address: str | None) -> None:
    """Raise OSError if no process listens at the address: Ray itself would retry for minutes."""
    host, _, port = (address or "").rpartition("//")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_SECONDS).close()


def _wait_for_resources(ray: ModuleType, run: Run, section: RayClusterConfig) -> None:
    """Wait for nodes, because a cluster at an address may still be growing. Raises PlacementError."""
    cpus = 1 + run.trainer.engine.ranks + engine_count(run)

    def resources() -> tuple[int, int, float]:
        """Living nodes, those of them with enough GPUs, and the CPUs of all."""
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fitting = [node for node in alive if node.get("GPU", 0) >= section.gpus_per_node]
        return len(alive), len(fitting), sum(node.get("CPU", 0) for node in alive)

    def is_enough() -> bool:
        _, fitting, found = resources()
        return fitting >= section.nodes and found >= cpus

    timeout = section.start_timeout_seconds if section.address else 0.0
    if wait_until(is_enough, "the cluster's nodes", timeout_seconds=timeout, interval_seconds=_POLL_SECONDS):
        return
    alive, fitting, found = resources()
    if fitting < section.nodes:
        raise PlacementError(
            f"cluster: the run needs {section.nodes} nodes with {section.gpus_per_node} GPUs each, and "
            f"{fitting} of the cluster's {alive} nodes have that many ({describe_free_resources(ray)} free "
            "in all). Start more nodes with `ray start --address=...`, or write smaller cluster.nodes and "
            f"cluster.gpus_per_node. {_OR_HERE}"
        )
    raise PlacementError(
        f"cluster: the run needs {cpus} CPUs, one for the explorer and for each of its engines, and "
        f"one for each of the trainer's ranks; the cluster's {alive} nodes have {found:g} in all. "
        f"Start more nodes with `ray start --address=...`, or write fewer ranks and engines. {_OR_HERE}"
    )
