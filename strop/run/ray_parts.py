"""Explorer and trainer as actors of a Ray cluster, seen from the launcher: placed, watched, placed again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from strop.config.schema import Run
from strop.config.schema.cluster import RayCluster
from strop.config.schema.trainer import Fsdp2Engine
from strop.errors import ConfigError, MissingExtraError, PlacementError, StropError
from strop.run.folder import RunFolder
from strop.run.parts import Name, Order, say
from strop.run.ray_actor import Ended, PartActor

_PAUSE_SECONDS = 0.5


@contextmanager
def ray_cluster(run: Run, section: RayCluster) -> Iterator[ModuleType]:
    """Ray, joined to its cluster, or to one on this machine that ends with the context.

    Raises MissingExtraError without Ray, and PlacementError for a cluster that is not there or too small.
    """
    ray = _import_ray()
    try:
        ray.init(
            address=section.address or "local",
            namespace=section.namespace or f"{run.project}/{run.name}",
            include_dashboard=None if section.address else False,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise PlacementError(
            f"cluster.address: no Ray cluster answers at {section.address}: {error}. Start one with `ray start "
            "--head`, name its address, or leave the key out: then one is started for the run."
        ) from error
    try:
        _wait_for_nodes(ray, section)
        yield ray
        if section.timeline:
            path = RunFolder.of(run).path / "monitor" / "timeline.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            ray.timeline(str(path))
    finally:
        ray.shutdown()


class RayPart:
    """One of the two: an actor, and another one where that died."""

    def __init__(self, ray: ModuleType, order: Order, section: RayCluster, restarts: int) -> None:
        self.name: Name = order.name
        self._ray = ray
        self._order = order
        self._section = section
        self._restarts = restarts
        self._restarted = 0
        self._ended: Ended | None = None
        self._start()

    @property
    def is_done(self) -> bool:
        """Whether it has done all that it had to."""
        return self._ended is not None and self._ended.error is None

    def check(self) -> None:
        """Show what it said; place it again if it died. Raises what it ended of, if that is no help."""
        if self._ended is None and self._ray.wait([self._running], timeout=0)[0]:
            self._end()
        elif self._ended is None:
            self._show(_PAUSE_SECONDS)
        if self._ended is not None and self._ended.error is not None:
            error = StropError(self._ended.error)
            error.exit_code = self._ended.exit_code
            raise error

    def stop(self) -> None:
        """Ask it to save its state and end."""
        if self._ended is None:
            self._actor.stop.remote()

    def wait(self) -> None:
        """Until it has ended, and all that it said is shown."""
        while self._ended is None and not self._ray.wait([self._running], timeout=_PAUSE_SECONDS)[0]:
            self._show(_PAUSE_SECONDS)
        if self._ended is None:
            self._end(final=True)
