"""Where the other part of a run reaches this one."""

from __future__ import annotations

from typing import assert_never

from strop.config.schema import Run
from strop.config.schema.cluster import LocalCluster, RayCluster
from strop.workers.ray_worker import node_address

LOOPBACK = "127.0.0.1"


def own_host(run: Run) -> str:
    """An address of this machine: nobody else's business where both parts are on it."""
    match run.cluster:
        case LocalCluster():
            return LOOPBACK
        case RayCluster():
            return node_address()
        case _:
            assert_never(run.cluster)
