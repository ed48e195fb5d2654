"""Where the parts of a run are, and what they start: on this machine, or on a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from strop.config.schema import Run
from strop.config.schema.buffer import PriorityBuffer, QueueBuffer
from strop.config.schema.cluster import RayCluster
from strop.run.apart.gpus import gpus_of, gpus_of_engine
from strop.run.apart.part import Name
from strop.run.folder import RunFolder
from strop.workers.ray_worker import Log, is_on_ray
from strop.workers.start import HERE, OnRay, Place

CPUS: dict[Name, float] = {"buffer": 0, "explorer": 1, "trainer": 1}
"""What is kept for each part; the buffer does little but wait."""


def actor_name(run: Run, section: RayCluster, part: Name) -> str:
    """What a part is called on Ray."""
    match part:
        case "buffer":
            assert isinstance(run.buffer, QueueBuffer | PriorityBuffer)
            return run.buffer.name
        case "explorer":
            return section.explorer
        case "trainer":
            return section.trainer
        case _:
            assert_never(part)


def place_of(run: Run, section: RayCluster, gpus: float, *, cpus: float = 1) -> OnRay:
    """Of an actor with so many CPUs and GPUs for itself."""
    log = Log(RunFolder.of(run).path.absolute(), section.logs_by_node)
    return OnRay(cpus, gpus, start_timeout_seconds=section.start_timeout_seconds, log=log)


def engines_place(run: Run) -> Place:
    """Of the engines of the explorer's pool."""
    section = run.cluster
    if not isinstance(section, RayCluster) or not is_on_ray():
        return HERE
    return replace(place_of(run, section, gpus_of_engine(run, section)), prefix=f"{section.explorer}-")


def ranks_place(run: Run) -> Place:
    """Of the trainer's ranks, but for the first, which is the trainer."""
    section = run.cluster
    if not isinstance(section, RayCluster) or not is_on_ray():
        return HERE
    return replace(place_of(run, section, gpus_of(run, section)["trainer"]), prefix=f"{section.trainer}-")
