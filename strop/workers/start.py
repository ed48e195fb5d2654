"""Where a worker is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from strop.workers.local import LocalWorker
from strop.workers.ray_worker import RayWorker
from strop.workers.worker import Serve, Worker


@dataclass(frozen=True, slots=True)
class Local:
    """As a process of this machine."""


@dataclass(frozen=True, slots=True)
class OnRay:
    """As an actor of the Ray cluster that this process belongs to, in its namespace."""

    cpus: float = 1
    gpus: float = 0
    """Of both, so many are kept for it; it sees those GPUs alone."""
    start_timeout_seconds: float = 120.0
    """Longest wait for a node that has them."""


Place = Local | OnRay


def start_worker(name: str, serve: Serve, place: Place) -> Worker:
    """A process that does what `serve` does. On Ray the actor has this name.

    Raises PlacementError where no node has room for an actor, or its name stays taken.
    """
    match place:
        case Local():
            return LocalWorker(name, serve)
        case OnRay():
            return RayWorker(
                name, serve, cpus=place.cpus, gpus=place.gpus, timeout_seconds=place.start_timeout_seconds
            )
        case _:
            assert_never(place)
