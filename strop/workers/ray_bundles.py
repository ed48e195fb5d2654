"""Placement groups of Ray: bundles of resources that are reserved together, each on one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from strop.workers.ray_node import living_nodes
from strop.workers.ray_runtime import import_ray

_PLACED = "CREATED"
_PROBE_THREADS = 16


@dataclass(frozen=True, slots=True)
class BundleGroup:
    """Bundles that Ray places on as few nodes as possible.

    Ray places those of a lost node on another node as soon as one has enough, and releases all when the process that
    has reserved them leaves the cluster.
    """

    handle: Any
    """Ray's placement group, which other processes of the cluster can use."""

    @classmethod
    def reserve(cls, bundles: Sequence[Mapping[str, float]]) -> BundleGroup:
        """Ask Ray for bundles, each with amounts by resource (`CPU`, `GPU`)."""
        import_ray()
        from ray.util.placement_group import placement_group

        amounts = [{name: amount for name, amount in bundle.items() if amount} for bundle in bundles]
        return cls(placement_group(amounts, strategy="PACK"))

    @property
    def is_placed(self) -> bool:
        """Whether every bundle is on a node, as far as Ray knows."""
        return bool(self._table()["state"] == _PLACED)

    @property
    def size(self) -> int:
        """Number of bundles."""
        return len(self._table()["bundles"])

    @property
    def nodes(self) -> dict[int, str]:
        """Ray's id of the node of each bundle; empty for one that has none."""
        return dict(sorted(self._table()["bundles_to_node_id"].items()))

    def responding_nodes(self) -> dict[int, str]:
        """`nodes` without bundles that have none, or are on one that does not respond, which Ray may not know yet."""
        living = living_nodes()
        nodes = {index: living[node] for index, node in self.nodes.items() if node in living}
        asked = list(dict.fromkeys(nodes.values()))
        with ThreadPoolExecutor(_PROBE_THREADS) as pool:
            answers = dict(zip(asked, pool.map(lambda node: node.probe(), asked), strict=True))
        return {index: node.id for index, node in nodes.items() if answers[node] == "alive"}

    def processes(self, index: int) -> int:
        """Number of processes with one CPU that a bundle can hold."""
        return int(self._table()["bundles"][index].get("CPU", 0))

    def _table(self) -> dict[str, Any]:
        from ray.util.placement_group import placement_group_table

        return dict(placement_group_table(self.handle))


@dataclass(frozen=True, slots=True)
class BundleSlot:
    """One bundle of a group, for the processes that are placed there."""

    group: BundleGroup
    index: int

    @property
    def strategy(self) -> Any:
        """Ray's scheduling strategy for an actor in this bundle."""
        import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self.group.handle, self.index)


_own: BundleSlot | None = None


def own_bundle() -> BundleSlot | None:
    """The bundle in which this process is placed; None if it is in none."""
    return _own


def set_own_bundle(slot: BundleSlot | None) -> None:
    """Record the bundle in which this process was placed."""
    global _own
    _own = slot
