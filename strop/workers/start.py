"""Where a worker is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from strop.workers.local import LocalWorker
from strop.workers.ray_worker import Log, RayWorker
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
    prefix: str = ""
    """What the actor's name begins with, before the worker's own."""
    log: Log | None = None
    """Where all that it says is written; None leaves it to Ray."""


Place = Local | OnRay
HERE = Local()


def start_worker(name: str, serve: Serve, place: Place) -> Worker:
    """A process that does what `serve` does. On Ray the actor has this name, behind the place's prefix.

    Raises PlacementError where no node has room for an actor, or its name stays taken.
    """
    match place:
        case Local():
            return LocalWorker(name, serve)
        case OnRay():
            return RayWorker(
                f"{place.prefix}{name}",
                serve,
                cpus=place.cpus,
                gpus=place.gpus,
                timeout_seconds=place.start_timeout_seconds,
                log=place.log,
            )
        case _:
            assert_never(place)
