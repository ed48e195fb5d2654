"""Access to Ray: its import, and the state of the cluster that this process belongs to."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from strop.errors import MissingExtraError

_SKIP_REGEX_VARIABLE, _ALL_LINES = "RAY_DEDUP_LOGS_SKIP_REGEX", "."
"""Ray does not repeat the nodes' log lines that match, such as twenty lines about an actor's death."""


def import_ray() -> ModuleType:
    """Import Ray, which then prints nothing on this console. Raises MissingExtraError if it is missing."""
    os.environ.setdefault(_SKIP_REGEX_VARIABLE, _ALL_LINES)
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            "cluster.type is ray, and Ray is not installed: pip install 'strop[ray]'"
        ) from error
    return ray


def is_on_ray() -> bool:
    """Whether this process belongs to a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def describe_free_resources(ray: ModuleType) -> str:
    """The free resources of the cluster, such as `3 CPUs, 1 GPUs`."""
    free = ray.available_resources()
    return f"{free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs"
