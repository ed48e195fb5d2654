"""Placement of a distributed run: addresses, actor names, and CPUs and GPUs of roles, engines and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from strop.config.schema import Run
from strop.config.schema.buffer import PriorityBufferConfig, QueueBufferConfig
from strop.config.schema.cluster import LocalClusterConfig, RayClusterConfig
from strop.errors import PlacementError
from strop.run.distributed.role import RoleName
from strop.runs.folder import RunFolder
from strop.workers.network import LOOPBACK, node_address
from strop.workers.ray_runtime import is_on_ray
from strop.workers.ray_worker import ActorLog
from strop.workers.start import LOCAL, RayPlacement, WorkerPlacement

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


def role_gpus(run: Run, section: RayClusterConfig) -> Mapping[RoleName, float]:
    """GPUs of each role's actor.

    The trainer has one, and so has each of its other ranks. The explorer has one; with a pool of engines it
    has none, and each engine has one. A single GPU of the whole cluster is shared by explorer and trainer.

    Raises PlacementError if the cluster has too few.
    """
    available = section.nodes * section.gpus_per_node
    pool, ranks = run.rollout.pool, run.trainer.engine.ranks
    if available == 0 or run.trainer.engine.device == "cpu":
        return {"buffer": 0, "explorer": 0, "trainer": 0}
    if available == 1 and ranks == 1:
        return {"buffer": 0, "explorer": 0 if pool else 0.5, "trainer": 0.5}
    engines = pool.engines if pool else 1
    if available < ranks + engines:
        more = f"its engines {engines} more (rollout.pool.engines)" if pool else "the explorer one more"
        raise PlacementError(
            f"cluster: {section.nodes} nodes of {section.gpus_per_node} GPUs have {available} in all; the "
            f"trainer needs {ranks} (trainer.engine.ranks), and {more}. Write fewer of them, or more nodes."
        )
    return {"buffer": 0, "explorer": 0 if pool else 1, "trainer": 1}


def engine_gpus(run: Run, section: RayClusterConfig) -> float:
    """GPUs of each engine of the explorer's pool."""
    available, pool = section.nodes * section.gpus_per_node, run.rollout.pool
    if pool is None or available == 0 or run.trainer.engine.device == "cpu":
        return 0
    return 0.5 / pool.engines if available == 1 and run.trainer.engine.ranks == 1 else 1


def actor_placement(run: Run, section: RayClusterConfig, gpus: float, *, cpus: float = 1) -> RayPlacement:
    """The placement of an actor with these resources, whose output goes into the run's folder."""
    log = ActorLog(RunFolder.of(run).path.absolute(), section.logs_by_node)
    return RayPlacement(cpus, gpus, start_timeout_seconds=section.start_timeout_seconds, log=log)


def engine_placement(run: Run) -> WorkerPlacement:
    """The placement of the engines of the explorer's pool."""
    section = run.cluster
    if not isinstance(section, RayClusterConfig) or not is_on_ray():
        return LOCAL
    return replace(
        actor_placement(run, section, engine_gpus(run, section)), prefix=f"{section.explorer_name}-"
    )


def rank_placement(run: Run) -> WorkerPlacement:
    """The placement of the trainer's ranks, except the first rank, which is the trainer itself."""
    section = run.cluster
    if not isinstance(section, RayClusterConfig) or not is_on_ray():
        return LOCAL
    return replace(
        actor_placement(run, section, role_gpus(run, section)["trainer"]), prefix=f"{section.trainer_name}-"
    )
