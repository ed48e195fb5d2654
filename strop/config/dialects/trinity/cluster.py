"""What Trinity says of a cluster: nodes, GPUs, and what only Ray has. It becomes `cluster: ray` where the
file asks for one, and is set aside where `--here` says that it runs on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from strop.config.dialects.row import TEXT, Can, Row, always, or_null, placement, unstated, written_by
from strop.config.dialects.theirs import Theirs
from strop.config.dialects.trinity.presets import is_offline
from strop.config.dialects.verl.trainer import one_gpu
from strop.config.schema import Run
from strop.config.schema.cluster import RayCluster

_NODES, _GPUS = "cluster.node_num", "cluster.gpu_per_node"
_NAMESPACE, _TIMELINE, _BY_NODE = "ray_namespace", "monitor.enable_ray_timeline", "log.group_by_node"
_ASKING: Mapping[str, Callable[[Any], bool]] = {
    _NODES: lambda nodes: nodes > 1,
    _GPUS: lambda gpus: gpus > 1,
    _NAMESPACE: lambda name: name is not None,
    _TIMELINE: bool,
    _BY_NODE: bool,
}
"""Which written values ask for a cluster: more than this machine's one GPU, and what only Ray has."""
_ADDRESS = "RAY_ADDRESS"
_HERE = "one process, on this machine"
_PARTS = ("explorer", "trainer")


def on_cluster(theirs: Theirs) -> bool:
    """Whether explorer and trainer are two actors of a Ray cluster: the file asks for one, both of them are
    there to be placed, and nobody said `--here`."""
    both = theirs["mode"] == "both" and not is_offline(theirs)
    asked = any(theirs.wrote(key) and asks(theirs[key]) for key, asks in _ASKING.items())
    return both and asked and not theirs.here


def write_cluster(run: Run) -> Mapping[str, Any]:
    """The namespace is always said: it is what asks for a cluster where nothing else does."""
    section = run.cluster
    if not isinstance(section, RayCluster):
        return {}
    return {
        _NODES: section.nodes,
        _GPUS: section.gpus_per_node,
        _NAMESPACE: section.namespace or f"{run.project}/{run.name}",
        _TIMELINE: section.timeline,
        _BY_NODE: section.logs_by_node,
        "explorer.name": section.explorer,
        "trainer.name": section.trainer,
    }


@written_by(write_cluster)
def cluster(theirs: Theirs) -> Mapping[str, Any]:
    """Ray, and the trainer on all GPUs that the rollout engines leave."""
    if not on_cluster(theirs):
        return {}
    several = theirs[_NODES] > 1
    settings: dict[str, Any] = {
        "cluster.type": "ray",
        "cluster.address": "auto" if several or os.environ.get(_ADDRESS) else None,
        "cluster.nodes": theirs[_NODES],
        "cluster.gpus_per_node": theirs[_GPUS],
        "cluster.namespace": theirs[_NAMESPACE],
        "cluster.timeline": theirs[_TIMELINE],
        "cluster.logs_by_node": theirs[_BY_NODE],
        **{f"cluster.{part}": theirs[f"{part}.name"] for part in _PARTS},
    }
    ranks = _ranks(theirs)
    if ranks > 1:
        settings |= {"trainer.engine.type": "fsdp2", "trainer.engine.ranks": ranks}
    return settings


def _ranks(theirs: Theirs) -> int:
    """GPUs that are left to the trainer; a single one it shares with the explorer."""
    gpus = theirs[_NODES] * theirs[_GPUS]
    at = "explorer.rollout_model"
    engines, each = theirs[f"{at}.engine_num"], theirs[f"{at}.tensor_parallel_size"]
    if gpus > 1 and gpus <= engines * each:
        raise theirs.fault(
            f"{at}.engine_num",
            f"{at}.engine_num {engines} x tensor_parallel_size {each} is all of the cluster's {gpus} GPUs, "
            "and the trainer wants one or more. Write fewer engines, or more nodes.",
        )
    return 1 if gpus <= 1 else int(gpus - engines * each)


def _or_on_cluster(can: Can) -> Can:
    return lambda theirs, value: on_cluster(theirs) or can(theirs, value)


def _at_most(key: str) -> Can:
    """Where it asks for nothing."""
    return lambda theirs, value: not _ASKING[key](value)


def _no_actors(part: str) -> Callable[[Theirs], str | None]:
    key = f"{part}.name"

    def off(theirs: Theirs) -> str | None:
        if on_cluster(theirs) or theirs[key] == part:
            return None
        return "it names an actor, and without a cluster there are none"

    return off


def _place(key: str, default: Any, instead: str, *ours: str, can: Can, **more: Any) -> Row:
    return placement(key, default, instead, can=_or_on_cluster(can), ours=ours, read=cluster, **more)


def name_row(part: str) -> Row:
    """`explorer.name`, or `trainer.name`."""
    return _place(
        f"{part}.name",
        part,
        "an actor's name, on a cluster",
        f"cluster.{part}",
        can=always,
        off=_no_actors(part),
    )


NAMESPACE = _place(
    _NAMESPACE,
    None,
    f"asks for a Ray cluster; with --here {_HERE}, which has no actors to name",
    "cluster.namespace",
    can=_at_most(_NAMESPACE),
    kind=or_null(TEXT),
)
TIMELINE = _place(
    _TIMELINE,
    False,
    f"asks for a Ray cluster; with --here {_HERE}, which Ray draws no timeline of",
    "cluster.timeline",
    can=_at_most(_TIMELINE),
)
BY_NODE = _place(
    _BY_NODE,
    False,
    f"asks for a Ray cluster; with --here {_HERE}, whose log is the console",
    "cluster.logs_by_node",
    can=_at_most(_BY_NODE),
)
ROWS = unstated(
    _place(
        _NODES,
        1,
        f"more than one asks for a Ray cluster that is there; with --here {_HERE}",
        "cluster.type",
        "cluster.address",
        "cluster.nodes",
        can=lambda theirs, value: bool(value == 1),
    ),
    _place(
        _GPUS,
        8,
        "more than one asks for a Ray cluster, where the trainer has a rank on each that the rollout engines "
        f"leave; with --here {_HERE}, on its GPU or else its CPU",
        "cluster.gpus_per_node",
        "trainer.engine",
        can=lambda theirs, value: value == 0 or one_gpu(theirs, value),
    ),
)
