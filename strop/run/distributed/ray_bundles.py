"""The bundles of a run on a Ray cluster: those of the explorer and its engines, and those of the trainer's ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strop.config.plan.bundles import (
    Bundle,
    NodeResources,
    describe_bundles,
    describe_nodes,
    rank_bundles,
    ranks_per_group,
)
from strop.config.schema import Run
from strop.config.schema.cluster import RayClusterConfig
from strop.config.schema.elastic import ElasticConfig
from strop.errors import PlacementError
from strop.run.distributed.placement import engine_count, engine_gpus, role_gpus, wait_for_bundles
from strop.run.distributed.role import RoleName
from strop.workers.ray_bundles import BundleGroup, BundleSlot
from strop.workers.ray_runtime import import_ray
from strop.workers.waiting import wait_until

_POLL_SECONDS = 0.2
_LOCAL_CLUSTER_SECONDS = 10.0
"""Longest wait for the bundles on a cluster that the run has started for itself, and that does not grow."""


@dataclass(frozen=True, slots=True)
class RunBundles:
    """The reserved bundles of a run."""

    samplers: BundleGroup
    """The explorer's bundle, then one for each engine."""
    ranks: BundleGroup
    """The bundles of the trainer's ranks, of which the trainer is the first."""

    def slot(self, role: RoleName, elastic: ElasticConfig | None) -> BundleSlot:
        """The bundle for the process of a role; the buffer, which needs no CPU, is with the explorer.

        Under `trainer.elastic`, a trainer whose bundle is on no responding node after `wait_seconds` gets another one.
        """
        match role:
            case "buffer" | "explorer":
                return BundleSlot(self.samplers, 0)
            case "trainer":
                index = 0
                if elastic is not None:
                    index = min(wait_for_bundles(self.ranks, elastic.wait_seconds, index=0), default=0)
                return BundleSlot(self.ranks, index)


def reserve_bundles(run: Run, section: RayClusterConfig) -> RunBundles:
    """Reserve the bundles of a run for as long as this process belongs to the cluster.

    Raises PlacementError if they do not fit on the nodes in time.
    """
    gpus = role_gpus(run)
    engine = run.trainer.engine
    size = ranks_per_group(engine)
    ranks = rank_bundles(engine.ranks, size, gpus["trainer"], _resources(free=False))
    groups = (
        f", in groups of {ranks[0].processes} on one node (sequence_parallel x tensor_parallel),"
        if size > 1
        else ""
    )
    engines = [Bundle(1, engine_gpus(run))] * engine_count(run)
    asked = {
        "ranks": (ranks, f"the trainer's ranks{groups}"),
        "samplers": ([Bundle(1, gpus["explorer"]), *engines], "the explorer and its engines"),
    }
    largest_first = sorted(
        asked, key=lambda name: -max(bundle.gpus or bundle.cpus for bundle in asked[name][0])
    )
    reserved = {name: _reserve(*asked[name], section) for name in largest_first}
    return RunBundles(**reserved)


def _reserve(bundles: Sequence[Bundle], whose: str, section: RayClusterConfig) -> BundleGroup:
    group = BundleGroup.reserve([{"CPU": bundle.cpus, "GPU": bundle.gpus} for bundle in bundles])
    limit = section.start_timeout_seconds
    if section.address is None:
        limit = min(limit, _LOCAL_CLUSTER_SECONDS)
    placed = wait_until(
        lambda: group.is_placed,
        f"free resources for {whose}",
        timeout_seconds=limit,
        interval_seconds=_POLL_SECONDS,
    )
    if not placed:
        raise PlacementError(
            f"cluster: {whose} did not fit on the nodes within {limit:g} s. They need {describe_bundles(bundles)}; "
            f"{describe_nodes(_resources(free=True), _resources(free=False))}. End other programs on the cluster, add "
            "nodes, write fewer or smaller ones, or a larger cluster.start_timeout_seconds; with --here the run needs "
            "no cluster."
        )
    return group


def _resources(*, free: bool) -> list[NodeResources]:
    """All resources of each living node, or those that are free, in the order of addresses."""
    ray = import_ray()
    from ray._private.state import available_resources_per_node

    alive = [node for node in ray.nodes() if node["Alive"]]
    amounts = available_resources_per_node() if free else {}  # type: ignore[no-untyped-call]
    found = []
    for node in sorted(alive, key=lambda node: (node["NodeManagerAddress"], node["NodeID"])):
        of_node = amounts.get(node["NodeID"], {}) if free else node["Resources"]
        name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        found.append(NodeResources(name, of_node.get("CPU", 0), of_node.get("GPU", 0)))
    return found
