"""`cluster`: where explorer and trainer run when they are apart."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from strop.config.schema.base import Section, kind_or


class LocalCluster(Section):
    """Two processes of this machine."""

    type: Literal["local"] = "local"


class RayCluster(Section):
    """Explorer, trainer and what they start, as actors of a Ray cluster, on whichever nodes have room."""

    type: Literal["ray"] = "ray"
    address: str | None = None
    """Of a cluster that is there (`auto` finds the one that this machine belongs to); null starts one on this
    machine for the run, and ends it with the run."""
    namespace: str | None = None
    """Ray's, in which the actors have their names; null is `<project>/<name>` of the run."""
    nodes: int = Field(1, gt=0)
    """So many machines the cluster must have."""
    gpus_per_node: int = Field(0, ge=0)
    """So many GPUs each of them must have; they are divided between explorer and trainer."""
    explorer: str = Field("explorer", min_length=1)
    """The explorer's name as an actor."""
    trainer: str = Field("trainer", min_length=1)
    """The trainer's name as an actor."""
    start_timeout_seconds: float = Field(120.0, gt=0)
    """Longest wait for nodes and for an actor's place; after it the run stops and says what is missing."""
    logs_by_node: bool = False
    """An actor's log is `log/<node's address>/<name>.log` in the run's folder, and not `log/<name>.log`."""
    timeline: bool = False
    """Leave Ray's timeline in the run's folder, `monitor/timeline.json`, for chrome://tracing."""

    @model_validator(mode="after")
    def _two_names(self) -> RayCluster:
        if self.explorer == self.trainer:
            raise ValueError(f"explorer and trainer are both named {self.explorer!r}; write two names")
        return self


Cluster = Annotated[LocalCluster | RayCluster, Field(discriminator="type"), kind_or("local")]
