"""Placement of a distributed run: addresses, actor names, and CPUs and GPUs of roles, engines and ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import assert_never

from strop.config.schema.buffer import PriorityBufferConfig, QueueBufferConfig
from strop.config.schema.run import LocalClusterConfig, RayClusterConfig, Run
from strop.config.schema.trainer import LocalEngineConfig, RankNetworkConfig
from strop.plan.placement import PlacedProcess, PlacementPlan, plan_run
from strop.plan.request import order_ranks
from strop.run.distributed.role import RoleName
from strop.run.distributed.torchrun import current_session
from strop.runs.folder import RunFolder
from strop.workers.network import LOOPBACK, node_address
from strop.workers.ray_runtime import is_on_ray
from strop.workers.ray_workers import ActorLog, BundleGroup, BundleSlot, own_bundle
from strop.workers.start import LOCAL, LocalPlacement, RankPlacement, RayPlacement, WorkerPlacement
from strop.workers.waiting import wait_until

ROLE_CPUS: Mapping[RoleName, float] = {"buffer": 0, "explorer": 1, "trainer": 1}
"""CPUs reserved for each role; the buffer needs next to none."""


_POLL_SECONDS = 0.5


def local_address(run: Run) -> str:
    """The address at which the other roles reach this process: loopback if all are on this machine."""
    match run.cluster:
        case LocalClusterConfig():
            return LOOPBACK
        case RayClusterConfig():
            return node_address()
        case _:
            assert_never(run.cluster)


def actor_name(run: Run, section: RayClusterConfig, role: RoleName) -> str:
    """The name of a role's Ray actor."""
    match role:
        case "buffer":
            assert isinstance(run.buffer, QueueBufferConfig | PriorityBufferConfig)
            return run.buffer.name
        case "explorer":
            return section.explorer_name
        case "trainer":
            return section.trainer_name
        case _:
            assert_never(role)


def role_gpus(run: Run) -> Mapping[RoleName, float]:
    """GPUs of each role's actor, from the placement plan: of the trainer's first rank, and of the explorer unless its
    engines are actors of their own. Raises PlacementError if the cluster has too few.
    """
    plan = plan_run(run)
    explorers = [placed for placed in plan.samplers if placed.process.role == "explorer"]
    return {
        "buffer": 0,
        "explorer": _actor_gpus(plan, explorers[0]) if explorers else 0,
        "trainer": _actor_gpus(plan, plan.processes[0]),
    }


def engine_gpus(run: Run) -> float:
    """GPUs of the actor of each engine; 0 for a connection to a server."""
    plan = plan_run(run)
    return _actor_gpus(plan, plan.samplers[0]) if plan.samplers else 0


def _actor_gpus(plan: PlacementPlan, placed: PlacedProcess) -> float:
    """Number of GPUs of an actor; explorer and trainer each have half of a single GPU that they share."""
    if not plan.is_shared:
        return len(placed.gpus)
    return 0.5 if placed.process.role == "trainer" else 0.5 / len(plan.samplers)


def engine_count(run: Run) -> int:
    """Number of engines that are actors of their own."""
    planned = sum(placed.process.role == "engine" for placed in plan_run(run).samplers)
    return planned or (run.rollout.pool.engines if run.rollout.pool else 0)


def actor_placement(
    run: Run,
    section: RayClusterConfig,
    gpus: float,
    *,
    cpus: float = 1,
    bundles: Mapping[str, BundleSlot] | None = None,
) -> RayPlacement:
    """The placement of actors with these resources, whose output goes into the run's folder.

    `bundles` has the bundle of each actor, by the worker's name.
    """
    engine = run.trainer.engine
    network = RankNetworkConfig() if isinstance(engine, LocalEngineConfig) else engine.network
    return RayPlacement(
        cpus,
        gpus,
        start_timeout_seconds=section.start_timeout_seconds,
        log=ActorLog(RunFolder.of(run).path.absolute(), section.logs_by_node),
        bundles=bundles or {},
        node_timeout_seconds=network.node_timeout_seconds,
    )


def engine_placement(run: Run) -> WorkerPlacement:
    """The placement of the engines that are processes of their own; their output goes into the run's folder.

    On Ray they are in the bundles after the explorer's, which is this process.
    """
    section = run.cluster
    if not isinstance(section, RayClusterConfig) or not is_on_ray():
        folder = RunFolder.of(run).path.absolute()
        return LocalPlacement(folder / "log") if folder.is_dir() else LOCAL
    own = own_bundle()
    bundles = (
        {}
        if own is None
        else {f"engine-{number}": BundleSlot(own.group, 1 + number) for number in range(engine_count(run))}
    )
    placement = actor_placement(run, section, engine_gpus(run), bundles=bundles)
    return replace(placement, prefix=f"{section.explorer_name}-")


@contextmanager
def open_rank_placement(run: Run) -> Iterator[RankPlacement]:
    """The placement of the trainer's ranks, except the first rank, which is the trainer itself.

    Under torchrun these are its processes, which are connected inside the context.
    """
    section, session = run.cluster, current_session()
    if session is not None and not isinstance(run.trainer.engine, LocalEngineConfig):
        with session.open_group(run) as agents:
            yield agents
    elif isinstance(section, RayClusterConfig) and is_on_ray():
        yield ray_rank_placement(run, section)
    else:
        yield LOCAL


def ray_rank_placement(run: Run, section: RayClusterConfig) -> RayPlacement:
    """Actors of the ranks other than the first, in the bundles of the group that has this process, the first rank.

    Under `trainer.elastic`, bundles that are on no responding node after `wait_seconds` are left out.
    """
    own, elastic = own_bundle(), run.trainer.elastic
    assert own is not None, "the launcher starts the trainer in a bundle"
    nodes = own.group.nodes
    if elastic is not None:
        nodes = {own.index: nodes[own.index], **wait_for_bundles(own.group, elastic.wait_seconds)}
    order = order_ranks(own.index, own.group.processes(own.index), nodes)
    bundles = {f"rank-{rank}": BundleSlot(own.group, index) for rank, index in enumerate(order)}
    placement = actor_placement(run, section, role_gpus(run)["trainer"], bundles=bundles)
    return replace(
        placement, prefix=f"{section.trainer_name}-", ranks=None if elastic is None else len(order)
    )


def wait_for_bundles(group: BundleGroup, seconds: float, index: int | None = None) -> Mapping[int, str]:
    """The bundles on nodes that respond, with Ray's id of the node: as soon as all bundles are on such nodes, or the
    one with this index, and after `seconds` in any case."""
    found: Mapping[int, str] = {}

    def is_placed() -> bool:
        nonlocal found
        found = group.responding_nodes()
        return len(found) == group.size if index is None else index in found

    wait_until(is_placed, "the lost node's ranks", timeout_seconds=seconds, interval_seconds=_POLL_SECONDS)
    return found
