"""Bundles of a run on a Ray cluster: resources that are reserved together on one node, and the ranks in them.

Ranks that divide tokens or layers (`sequence_parallel` x `tensor_parallel`) exchange data in every layer, so that one
bundle holds a whole group of them. Ray places the bundles, on as few nodes as possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strop.config.schema.training_engine import Fsdp2EngineConfig, LocalEngineConfig, TrainingEngineConfig


@dataclass(frozen=True, slots=True)
class NodeResources:
    """Resources of one node of a cluster, all or those that are free."""

    name: str
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources on one node for some processes of equal size."""

    processes: int
    """Number of processes, each with one CPU."""
    gpus: float
    """GPUs of all of them."""

    @property
    def cpus(self) -> int:
        """CPUs of all of them."""
        return self.processes


def ranks_per_group(engine: TrainingEngineConfig) -> int:
    """Number of adjacent ranks that divide the tokens or the layers of one micro-batch."""
    if isinstance(engine, LocalEngineConfig):
        return 1
    tensor_parallel = engine.tensor_parallel if isinstance(engine, Fsdp2EngineConfig) else 1
    return engine.sequence_parallel * tensor_parallel


def fitting_group(group: int, largest: int) -> int:
    """The part of a group that is kept on one node: all of it, or if no node has places for that many (`largest`), the
    largest equal part that fits."""
    return max(size for size in range(1, group + 1) if group % size == 0 and size <= max(largest, 1))


def rank_bundles(ranks: int, group: int, gpus: float, nodes: Sequence[NodeResources]) -> tuple[Bundle, ...]:
    """The bundles of a trainer's ranks, each of which has a CPU and `gpus` GPUs, on a cluster of these nodes."""
    places = [int(min(node.cpus, node.gpus / gpus if gpus else node.cpus)) for node in nodes]
    size = fitting_group(group, max(places, default=1))
    return (Bundle(size, size * gpus),) * (ranks // size)


def order_ranks(own: int, size: int, nodes: Mapping[int, str]) -> tuple[int, ...]:
    """The bundle of each rank, by rank: first those of the bundle `own`, which has the first rank, then those of other
    bundles on its node, then node by node.

    `nodes` has the node of each bundle that can be used; `size` is the number of ranks in a bundle.
    """
    home = nodes[own]
    ordered = sorted(nodes, key=lambda index: (index != own, nodes[index] != home, nodes[index], index))
    return tuple(index for index in ordered for _ in range(size))


def describe_bundles(bundles: Sequence[Bundle]) -> str:
    """The bundles as a part of a sentence, such as `2 times 2 CPUs and 4 GPUs of one node, and 1 CPU`."""
    counts = {bundle: sum(each == bundle for each in bundles) for bundle in dict.fromkeys(bundles)}
    return ", and ".join(f"{count} times {_resources(bundle)}" for bundle, count in counts.items())


def describe_nodes(free: Sequence[NodeResources], total: Sequence[NodeResources]) -> str:
    """The free resources of each node, of all that it has."""
    return "; ".join(
        f"{node.name} has {have.cpus:g} of {node.cpus:g} CPUs and {have.gpus:g} of {node.gpus:g} GPUs free"
        for node, have in zip(total, free, strict=True)
    )


def _resources(bundle: Bundle) -> str:
    gpus = f" and {bundle.gpus:g} GPUs" if bundle.gpus else ""
    one = " of one node" if bundle.processes > 1 or bundle.gpus > 1 else ""
    return f"{bundle.cpus} CPUs{gpus}{one}"
