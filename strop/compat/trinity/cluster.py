"""Ledger rows of Trinity's cluster keys: nodes, GPUs, and options that only Ray has. They become `cluster:
ray` where the file requests a cluster; `--here` overrides them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    BOOLEAN,
    ONE_MACHINE,
    STRING,
    ForeignValues,
    KeyMapping,
    SupportCheck,
    always,
    no_effects,
    not_on_page,
    nullable,
    only,
    placement,
    unstated_defaults,
    versions,
    written_by,
)
from strop.compat.trinity.inference_model import gpus_per_engine
from strop.compat.trinity.presets import is_offline
from strop.compat.verl.engine import one_gpu
from strop.config.schema import Run
from strop.config.schema.run import RayClusterConfig

_NODES, _GPUS = "cluster.node_num", "cluster.gpu_per_node"
_NAMESPACE, _TIMELINE, _BY_NODE = "ray_namespace", "monitor.enable_ray_timeline", "log.group_by_node"
_REQUESTS_CLUSTER: Mapping[str, Callable[[Any], bool]] = {
    _NODES: lambda nodes: nodes > 1,
    _GPUS: lambda gpus: gpus > 1,
    _NAMESPACE: lambda name: name is not None,
    _TIMELINE: bool,
    _BY_NODE: bool,
}
"""Values that request a Ray cluster where they are set: several nodes or GPUs, and options that only Ray
has."""
_ROLES = ("explorer", "trainer")


def uses_cluster(foreign: ForeignValues) -> bool:
    """Whether explorer and trainer are two actors of a Ray cluster: the run has both, the file requests a
    cluster, and `--here` is not given."""
    both = foreign["mode"] == "both" and not is_offline(foreign)
    requested = any(
        foreign.is_set(key) and requests(foreign[key]) for key, requests in _REQUESTS_CLUSTER.items()
    )
    return both and requested and not foreign.here


def write_cluster(run: Run) -> Mapping[str, Any]:
    """Write the cluster; the namespace is always written, because it requests a cluster even without the
    other keys."""
    section = run.cluster
    if not isinstance(section, RayClusterConfig):
        return {}
    return {
        _NODES: section.nodes,
        _GPUS: section.gpus_per_node,
        _NAMESPACE: section.namespace or f"{run.project}/{run.name}",
        _TIMELINE: section.timeline,
        _BY_NODE: section.logs_by_node,
        "explorer.name": section.explorer_name,
        "trainer.name": section.trainer_name,
    }


@written_by(write_cluster)
def cluster(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the Ray cluster; the trainer uses all GPUs that the rollout engines do not use."""
    if not uses_cluster(foreign):
        return {}
    several = foreign[_NODES] > 1
    settings: dict[str, Any] = {
        "cluster.type": "ray",
        "cluster.address": "auto" if several or os.environ.get("RAY_ADDRESS") else None,
        "cluster.nodes": foreign[_NODES],
        "cluster.gpus_per_node": foreign[_GPUS],
        "cluster.namespace": foreign[_NAMESPACE],
        "cluster.timeline": foreign[_TIMELINE],
        "cluster.logs_by_node": foreign[_BY_NODE],
        **{f"cluster.{role}_name": foreign[f"{role}.name"] for role in _ROLES},
    }
    ranks = cluster_ranks(foreign)
    if ranks > 1:
        settings |= {"trainer.engine.type": "fsdp2", "trainer.engine.ranks": ranks}
    return settings


def cluster_ranks(foreign: ForeignValues) -> int:
    """The number of GPUs of the trainer; a single GPU is shared with the explorer."""
    gpus = foreign[_NODES] * foreign[_GPUS]
    at = "explorer.rollout_model"
    engines, each = foreign[f"{at}.engine_num"], gpus_per_engine(foreign)
    if gpus > 1 and gpus <= engines * each:
        raise foreign.error_for(
            f"{at}.engine_num",
            f"{at}.engine_num {engines} x {each} GPUs of an engine leaves none of the cluster's {gpus} "
            "GPUs for the trainer, which needs at least one. Write fewer engines, or more nodes.",
        )
    return 1 if gpus <= 1 else int(gpus - engines * each)


def _or_on_cluster(supported: SupportCheck) -> SupportCheck:
    return lambda foreign, value: uses_cluster(foreign) or supported(foreign, value)


def _requests_nothing(key: str) -> SupportCheck:
    """Check that supports values that do not request a cluster."""
    return lambda foreign, value: not _REQUESTS_CLUSTER[key](value)


def _no_actors(role: str) -> Callable[[ForeignValues], str | None]:
    key = f"{role}.name"

    def inactive(foreign: ForeignValues) -> str | None:
        if uses_cluster(foreign) or foreign[key] == role:
            return None
        return "it names an actor, and a run without a cluster has no actors"

    return inactive


def _cluster_row(
    key: str, default: Any, instead: str, *fields: str, supported: SupportCheck, **more: Any
) -> KeyMapping:
    return placement(
        key, default, instead, supported=_or_on_cluster(supported), fields=fields, read=cluster, **more
    )


ROWS = (
    *unstated_defaults(
        _cluster_row(
            _NODES,
            1,
            f"more than one requests a running Ray cluster; with --here, {ONE_MACHINE}",
            "cluster.type",
            "cluster.address",
            "cluster.nodes",
            supported=lambda foreign, value: bool(value == 1),
        ),
        _cluster_row(
            _GPUS,
            8,
            "more than one requests a Ray cluster, where the trainer has a rank on each GPU that the rollout "
            f"engines do not use; with --here, {ONE_MACHINE}'s GPU, or on its CPU if there is no GPU",
            "cluster.gpus_per_node",
            "trainer.engine",
            supported=lambda foreign, value: value == 0 or one_gpu(foreign, value),
        ),
        *(
            _cluster_row(
                f"{role}.name",
                role,
                "the actor's name on a cluster",
                f"cluster.{role}_name",
                supported=always,
                inactive=_no_actors(role),
            )
            for role in _ROLES
        ),
    ),
    *(
        _cluster_row(
            key,
            default,
            f"requests a Ray cluster; with --here, {ONE_MACHINE}, {without}",
            field,
            supported=_requests_nothing(key),
            value_type=value_type,
        )
        for key, default, without, field, value_type in (
            (_NAMESPACE, None, "without actors", "cluster.namespace", nullable(STRING)),
            (_TIMELINE, False, "without Ray's timeline", "cluster.timeline", BOOLEAN),
            (_BY_NODE, False, "which logs to the console", "cluster.logs_by_node", BOOLEAN),
        )
    ),
    *versions(
        placement(
            "cluster.ray_address",
            "auto",
            "the environment variable RAY_ADDRESS is used",
            supported=only("auto"),
        ),
        since="0.4",
    ),
    *not_on_page(
        *no_effects(
            "cluster",
            (
                *(f"{role}_gpu_num" for role in ("total", "rollout", "auxiliary_model", *_ROLES)),
                *("trainer_node_num", "trainer_gpu_num_per_node"),
            ),
            "Trinity sets it itself",
        )
    ),
)
