"""Placement of a distributed run: addresses, actor names, and CPUs and GPUs of roles, engines and ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import assert_never

from strop.config.plan.planner import PlacedProcess, PlacementPlan
from strop.config.plan.table import plan_run
from strop.config.schema import Run
from strop.config.schema.buffer import PriorityBufferConfig, QueueBufferConfig
from strop.config.schema.cluster import LocalClusterConfig, RayClusterConfig
from strop.config.schema.training_engine import LocalEngineConfig
from strop.run.distributed.role import RoleName
from strop.run.distributed.torchrun import current_session
from strop.runs.folder import RunFolder
from strop.workers.network import LOOPBACK, node_address
from strop.workers.ray_runtime import import_ray, is_on_ray
from strop.workers.ray_worker import ActorLog
from strop.workers.start import LOCAL, LocalPlacement, RankPlacement, RayPlacement, WorkerPlacement

ROLE_CPUS: Mapping[RoleName, float] = {"buffer": 0, "explorer": 1, "trainer": 1}
"""CPUs reserved for each role; the buffer needs next to none."""


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


def planned_nodes(run: Run) -> Mapping[str, str]:
    """Ray's id of the planned node of each process, by the process's name in the plan; empty for one node, or if this
    process belongs to no cluster. The plan's first node is the first one by address of those with enough GPUs.
    """
    section = run.cluster
    if not isinstance(section, RayClusterConfig) or section.nodes == 1 or not section.gpus_per_node:
        return {}
    nodes = [
        (node["NodeManagerAddress"], node["NodeID"])
        for node in import_ray().nodes()
        if node["Alive"] and node["Resources"].get("GPU", 0) >= section.gpus_per_node
    ]
    plan = plan_run(run)
    ids = {
        planned.name: node_id
        for planned, (_, node_id) in zip(plan.machine.nodes, sorted(nodes), strict=False)
    }
    return {
        placed.process.name: ids[placed.node.name] for placed in plan.processes if placed.node.name in ids
    }


def actor_placement(
    run: Run,
    section: RayClusterConfig,
    gpus: float,
    *,
    cpus: float = 1,
    nodes: Mapping[str, str] | None = None,
) -> RayPlacement:
    """The placement of actors with these resources, whose output goes into the run's folder.

    `nodes` has Ray's id of the preferred node by the actor's name.
    """
    log = ActorLog(RunFolder.of(run).path.absolute(), section.logs_by_node)
    timeout = section.start_timeout_seconds
    return RayPlacement(cpus, gpus, start_timeout_seconds=timeout, log=log, nodes=nodes or {})


def engine_placement(run: Run) -> WorkerPlacement:
    """The placement of the engines that are processes of their own; their output goes into the run's folder."""
    section = run.cluster
    if not isinstance(section, RayClusterConfig) or not is_on_ray():
        folder = RunFolder.of(run).path.absolute()
        return LocalPlacement(folder / "log") if folder.is_dir() else LOCAL
    nodes = {name.replace(" ", "-"): node for name, node in planned_nodes(run).items()}
    placement = actor_placement(run, section, engine_gpus(run), nodes=nodes)
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
    """Actors of the ranks other than the first; each prefers its node of the plan, which fills the nodes in turn."""
    nodes = {
        name.removeprefix("trainer ").replace(" ", "-"): node for name, node in planned_nodes(run).items()
    }
    placement = actor_placement(run, section, role_gpus(run)["trainer"], nodes=nodes)
    return replace(placement, prefix=f"{section.trainer_name}-")
