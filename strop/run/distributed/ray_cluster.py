"""Ray clusters: connection or start, check and reservation of the resources; roles as actors: the code of the actor's
process, and the actor as the launcher sees it."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from io import TextIOBase
from pathlib import Path
from signal import SIGTERM
from threading import Lock, Thread
from types import ModuleType
from uuid import uuid4

from strop.config.schema.run import RayClusterConfig, Run
from strop.config.schema.trainer import ElasticConfig
from strop.errors import MissingExtraError, PlacementError, StropError, WorkerDiedError
from strop.plan.request import (
    Bundle,
    NodeResources,
    describe_bundles,
    describe_nodes,
    rank_bundles,
    ranks_per_group,
)
from strop.run.distributed.placement import (
    ROLE_CPUS,
    actor_name,
    actor_placement,
    engine_count,
    engine_gpus,
    role_gpus,
    wait_for_bundles,
)
from strop.run.distributed.role import RoleExit, RoleName, RoleSpec, RoleSupervisor, print_line
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.lock import lock_actor
from strop.workers.files import atomic_write
from strop.workers.network import node_address
from strop.workers.ray_runtime import describe_free_resources, import_ray
from strop.workers.ray_workers import BundleGroup, BundleSlot, RayExecutor
from strop.workers.signals import StopSignal
from strop.workers.start import RayPlacement, start_worker
from strop.workers.waiting import wait_until
from strop.workers.worker import Channel, WorkerTarget

CLUSTER_MARKER = ".cluster"
"""The file of the run's folder by which an actor recognizes the folder."""


@dataclass(frozen=True, slots=True)
class RayRoleSpec:
    """The input of a role's Ray actor."""

    spec: RoleSpec
    folder: Path
    """The run's folder, absolute."""
    marker: str
    """The content of the marker file."""

    def check_folder(self) -> None:
        """Raise PlacementError if this node sees another folder under the path than the launcher does."""
        marker = self.folder / CLUSTER_MARKER
        if not marker.is_file() or marker.read_text() != self.marker:
            raise PlacementError(
                f"The node {node_address()}, where the {self.spec.name} was placed, does not see the run's "
                f"folder {self.folder}. All nodes of a cluster must reach it at one path: set `output` to "
                "a folder on a disk that they share."
            )


@dataclass(frozen=True, slots=True)
class OutputLines:
    """Complete lines of the role's console output."""

    lines: list[str]


class StopRequest:
    """Asks the role to save its state and end."""


def serve_role(channel: Channel, run_role: Callable[[RoleSpec], None]) -> None:
    """Receive a `RayRoleSpec` and run its role until it ends or a `StopRequest` arrives.

    Sends `OutputLines` during the run and a `RoleExit` at its end.
    """
    spec: RayRoleSpec = channel.receive()
    Thread(target=_watch_for_stop, args=(channel,), daemon=True).start()
    channel.send(_run_spec(spec, run_role, lambda lines: channel.send(OutputLines(lines))))


def _watch_for_stop(channel: Channel) -> None:
    """Messages, because Ray handles the actor's signals itself."""
    while True:
        if isinstance(channel.receive(), StopRequest):
            StopSignal.request(SIGTERM)


def _run_spec(
    spec: RayRoleSpec, run_role: Callable[[RoleSpec], None], show: Callable[[list[str]], None]
) -> RoleExit:
    try:
        spec.check_folder()
        lines = _LineWriter(show)
        with lock_actor(spec.folder), redirect_stdout(lines), redirect_stderr(lines):
            run_role(spec.spec)
    except StropError as error:
        return RoleExit(str(error), error.exit_code)
    return RoleExit()


class _LineWriter(TextIOBase):
    """Writes into the actor's log, and passes complete lines to `show`."""

    def __init__(self, show: Callable[[list[str]], None]) -> None:
        self._log = sys.stdout
        self._show = show
        self._text = ""
        self._lock = Lock()

    def write(self, text: str) -> int:
        with self._lock:
            self._log.write(text)
            self._log.flush()
            lines, end, self._text = (self._text + text).rpartition("\n")
            if end:
                self._show(lines.split("\n"))
        return len(text)


_ACTOR_POLL_SECONDS = 0.5


class RayRoleProcess:
    """A `RoleProcess` that is an actor. Its output is printed when it is polled."""

    def __init__(self, spec: RayRoleSpec, serve: WorkerTarget, name: str, placement: RayPlacement) -> None:
        """Start the actor under this name.

        Raises ConfigError if another actor keeps the name, PlacementError if no node has enough resources.
        """
        self._role = spec.spec.name
        self._exit: RoleExit | None = None
        self._worker = start_worker(name, serve, placement)
        with suppress(WorkerDiedError):  # which `poll` reports
            self._worker.send(spec)

    def poll(self) -> RoleExit | None:
        """See `RoleProcess`."""
        while self._exit is None and self._worker.poll(0):
            self._receive()
        return self._exit

    def request_stop(self) -> None:
        """See `RoleProcess`."""
        if self._exit is None:
            with suppress(WorkerDiedError):  # which `wait` reports
                self._worker.send(StopRequest())

    def wait(self) -> RoleExit:
        """See `RoleProcess`."""
        while self._exit is None:
            if self._worker.poll(_ACTOR_POLL_SECONDS):
                self._receive()
        return self._exit

    def _receive(self) -> None:
        try:
            message: OutputLines | RoleExit = self._worker.receive()
        except WorkerDiedError as death:
            error = f"The {self._role}'s actor ended {death.exit_reason}."
            message = RoleExit(error, 1, was_killed=death.killed)
        if isinstance(message, RoleExit):
            self._exit = message
            self._worker.kill()  # Ray keeps the name of a dead actor until it is killed
            return
        for line in message.lines:
            print_line(self._role, line)


_BUNDLES_POLL_SECONDS = 0.2
_LOCAL_CLUSTER_SECONDS = 10.0
"""Longest wait for the bundles on a cluster that the run has started for itself, and that does not grow."""


@dataclass(frozen=True, slots=True)
class RunBundles:
    """The reserved bundles of a run."""

    samplers: BundleGroup
    """The explorer's bundle, then one for each engine."""
    ranks: BundleGroup
    """The bundles of the trainer's ranks, of which the trainer is the first."""

    def slot(self, role: RoleName, elastic: ElasticConfig | None) -> BundleSlot:
        """The bundle for the process of a role; the buffer, which needs no CPU, is with the explorer.

        Under `trainer.elastic`, a trainer whose bundle is on no responding node after `wait_seconds` gets another one.
        """
        match role:
            case "buffer" | "explorer":
                return BundleSlot(self.samplers, 0)
            case "trainer":
                index = 0
                if elastic is not None:
                    index = min(wait_for_bundles(self.ranks, elastic.wait_seconds, index=0), default=0)
                return BundleSlot(self.ranks, index)


def reserve_bundles(run: Run, section: RayClusterConfig) -> RunBundles:
    """Reserve the bundles of a run for as long as this process belongs to the cluster.

    Raises PlacementError if they do not fit on the nodes in time.
    """
    gpus = role_gpus(run)
    engine = run.trainer.engine
    size = ranks_per_group(engine)
    ranks = rank_bundles(engine.ranks, size, gpus["trainer"], _resources(free=False))
    groups = (
        f", in groups of {ranks[0].processes} on one node (sequence_parallel x tensor_parallel),"
        if size > 1
        else ""
    )
    engines = [Bundle(1, engine_gpus(run))] * engine_count(run)
    asked = {
        "ranks": (ranks, f"the trainer's ranks{groups}"),
        "samplers": ([Bundle(1, gpus["explorer"]), *engines], "the explorer and its engines"),
    }
    largest_first = sorted(
        asked, key=lambda name: -max(bundle.gpus or bundle.cpus for bundle in asked[name][0])
    )
    reserved = {name: _reserve(*asked[name], section) for name in largest_first}
    return RunBundles(**reserved)


def _reserve(bundles: Sequence[Bundle], whose: str, section: RayClusterConfig) -> BundleGroup:
    group = BundleGroup.reserve([{"CPU": bundle.cpus, "GPU": bundle.gpus} for bundle in bundles])
    limit = section.start_timeout_seconds
    if section.address is None:
        limit = min(limit, _LOCAL_CLUSTER_SECONDS)
    placed = wait_until(
        lambda: group.is_placed,
        f"free resources for {whose}",
        timeout_seconds=limit,
        interval_seconds=_BUNDLES_POLL_SECONDS,
    )
    if not placed:
        raise PlacementError(
            f"cluster: {whose} did not fit on the nodes within {limit:g} s. They need {describe_bundles(bundles)}; "
            f"{describe_nodes(_resources(free=True), _resources(free=False))}. End other programs on the cluster, add "
            "nodes, write fewer or smaller ones, or a larger cluster.start_timeout_seconds; with --here the run needs "
            "no cluster."
        )
    return group


def _resources(*, free: bool) -> list[NodeResources]:
    """All resources of each living node, or those that are free, in the order of addresses."""
    ray = import_ray()
    from ray._private.state import available_resources_per_node

    alive = [node for node in ray.nodes() if node["Alive"]]
    amounts = available_resources_per_node() if free else {}  # type: ignore[no-untyped-call]
    found = []
    for node in sorted(alive, key=lambda node: (node["NodeManagerAddress"], node["NodeID"])):
        of_node = amounts.get(node["NodeID"], {}) if free else node["Resources"]
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        found.append(NodeResources(name, of_node.get("CPU", 0), of_node.get("GPU", 0)))
    return found


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
