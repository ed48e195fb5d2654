"""Placement and start of workers: as local processes, as Ray actors, or by agents on other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from strop.workers.agents import AgentHub, AgentWorker
from strop.workers.ray_workers import ActorLog, BundleSlot, RayWorker
from strop.workers.worker import LocalWorker, Worker, WorkerTarget


@dataclass(frozen=True, slots=True)
class LocalPlacement:
    """A process of this machine."""

    logs: Path | None = None
    """Folder of the workers' output, one file `<name>.log` each; None leaves the output to this process's console."""

    @property
    def ranks(self) -> None:
        """None: this machine has as many ranks as the run wants."""
        return None


@dataclass(frozen=True, slots=True)
class RayPlacement:
    """An actor of the Ray cluster that this process belongs to, in its namespace."""

    cpus: float = 1
    """CPUs reserved for the actor."""
    gpus: float = 0
    """GPUs reserved for the actor; it sees no others."""
    start_timeout_seconds: float = 300.0
    """Longest wait for a node with these resources."""
    prefix: str = ""
    """Prefix of the actor's name, before the worker's name."""
    bundles: Mapping[str, BundleSlot] = field(default_factory=dict)
    """The bundle of each actor, by the worker's name; Ray chooses the node of an actor without one."""
    log: ActorLog | None = None
    """The log file for the actor's output; None leaves its output to Ray."""
    node_timeout_seconds: float = 20.0
    """Silence after which the actor's node counts as lost."""
    ranks: int | None = None
    """Number of ranks for which there are places, with the first one; None for as many as the run wants."""


@dataclass(frozen=True, slots=True)
class AgentPlacement:
    """Processes of agents, which a launcher such as torchrun has started on any nodes."""

    hub: AgentHub
    """The server to which the agents are connected."""
    workers: Mapping[str, AgentWorker]
    """The agents' workers, by name."""
    local_rank: int
    """Number of this process among those of its node that the launcher started."""
    local_ranks: int
    """Number of these processes on this node."""

    @property
    def ranks(self) -> int:
        """Number of ranks, with the first one."""
        return len(self.workers) + 1


WorkerPlacement = LocalPlacement | RayPlacement
"""Placement of processes that this one starts."""
RankPlacement = WorkerPlacement | AgentPlacement
"""Placement of a trainer's ranks, which a launcher may have started."""
LOCAL = LocalPlacement()


def start_worker(name: str, serve: WorkerTarget, placement: RankPlacement) -> Worker:
    """Start a worker that runs `serve`. A Ray actor is named after the worker, with the placement's prefix.

    Raises PlacementError if no node has enough free resources, ConfigError if another actor keeps the name.
    """
    match placement:
        case LocalPlacement():
            return LocalWorker(name, serve, placement.logs and placement.logs / f"{name}.log")
        case RayPlacement():
            return RayWorker(
                f"{placement.prefix}{name}",
                serve,
                cpus=placement.cpus,
                gpus=placement.gpus,
                timeout_seconds=placement.start_timeout_seconds,
                log=placement.log,
                node_timeout_seconds=placement.node_timeout_seconds,
                bundle=placement.bundles.get(name),
            )
        case AgentPlacement():
            worker = placement.workers[name]
            worker.start(name, serve)
            return worker
        case _:
            assert_never(placement)
