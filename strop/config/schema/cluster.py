"""`cluster`: machines on which explorer and trainer run if they are separate processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from strop.config.names import FileName
from strop.config.schema.base import Section, type_shorthand
from strop.config.units import MAX_SECONDS


class LocalClusterConfig(Section):
    """Processes of this machine."""

    type: Literal["local"] = "local"


class RayClusterConfig(Section):
    """Actors of a Ray cluster, placed on nodes with free resources."""

    type: Literal["ray"] = "ray"
    address: str | None = None
    """Address of an existing cluster (`auto` finds the cluster of this machine); null starts a cluster on
    this machine and stops it at the end of the run."""
    namespace: str | None = None
    """Ray namespace of the actors' names; null is `<project>/<name>` of the run."""
    nodes: int = Field(1, gt=0)
    """Minimum number of nodes that the cluster must have."""
    gpus_per_node: int = Field(0, ge=0)
    """Minimum number of GPUs on each of these nodes; they are divided between explorer and trainer."""
    explorer_name: FileName = "explorer"
    """Name of the explorer's actor."""
    trainer_name: FileName = "trainer"
    """Name of the trainer's actor."""
    start_timeout_seconds: float = Field(300.0, gt=0, le=MAX_SECONDS)
    """Maximum wait for the nodes, and for the placement of an actor; after it the run stops with an error
    that names the missing resources."""
    logs_by_node: bool = False
    """Write an actor's log to `log/<node's address>/<name>.log` in the run's folder instead of
    `log/<name>.log`."""
    timeline: bool = False
    """Write Ray's timeline to `monitor/timeline.json` in the run's folder, for chrome://tracing."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.explorer_name == self.trainer_name:
            yield (
                f"explorer_name and trainer_name are both {self.explorer_name!r}; write two different names"
            )


ClusterConfig = Annotated[
    LocalClusterConfig | RayClusterConfig, Field(discriminator="type"), type_shorthand("local")
]
