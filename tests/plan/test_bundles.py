"""Bundles of ranks on the nodes of a cluster, and the order of ranks in them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.plan.request import (
    Bundle,
    NodeResources,
    describe_bundles,
    describe_nodes,
    fitting_group,
    order_ranks,
    rank_bundles,
)


def cpus(*counts: int) -> list[NodeResources]:
    return [NodeResources(f"n{number}", count, 0) for number, count in enumerate(counts)]


@pytest.mark.parametrize(
    ("ranks", "group", "gpus", "nodes", "expected"),
    [
        (4, 1, 0, cpus(2, 2), [Bundle(1, 0)] * 4),
        (4, 2, 0, cpus(3, 1), [Bundle(2, 0)] * 2),
        (16, 16, 1, [NodeResources("a", 64, 8), NodeResources("b", 64, 8)], [Bundle(8, 8)] * 2),
        (6, 6, 1, [NodeResources("a", 64, 4)], [Bundle(3, 3)] * 2),
        (4, 4, 1, [NodeResources("a", 2, 8)], [Bundle(2, 2)] * 2),  # too few CPUs
        (1, 1, 0.5, [NodeResources("a", 2, 1)], [Bundle(1, 0.5)]),
        (4, 4, 0.5, [NodeResources("a", 8, 2)], [Bundle(4, 2)]),
        (2, 2, 0, cpus(0, 0), [Bundle(1, 0)] * 2),
    ],
)
def test_a_bundle_holds_a_group_or_the_largest_part_that_a_node_can(ranks, group, gpus, nodes, expected):
    assert list(rank_bundles(ranks, group, gpus, nodes)) == expected


@given(st.integers(1, 64), st.integers(0, 64))
def test_a_group_is_divided_only_where_no_node_is_large_enough(group: int, largest: int) -> None:
    size = fitting_group(group, largest)
    assert group % size == 0 and size <= max(largest, 1)
    assert (size == group) == (group <= max(largest, 1))


placements = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.sampled_from("abc"), min_size=1, max_size=8).flatmap(
        lambda nodes: st.tuples(st.integers(0, len(nodes) - 1), st.just(size), st.just(nodes))
    )
)


@given(placements)
def test_ranks_of_a_bundle_and_of_a_node_are_adjacent_and_the_first_rank_is_at_home(case) -> None:
    own, size, nodes = case
    order = order_ranks(own, size, dict(enumerate(nodes)))
    assert order[0] == own and sorted(order) == sorted([*range(len(nodes))] * size)
    assert all(len(set(order[first : first + size])) == 1 for first in range(0, len(order), size))
    changes = sum(nodes[left] != nodes[right] for left, right in pairwise(order))
    assert changes == len(set(nodes)) - 1, "each node's ranks are adjacent"


def test_a_lost_bundle_has_no_ranks() -> None:
    assert order_ranks(2, 2, {0: "b", 2: "a", 3: "a"}) == (2, 2, 3, 3, 0, 0)


def test_a_refusal_says_what_is_asked_and_what_each_node_has() -> None:
    assert describe_bundles([Bundle(1, 0), Bundle(1, 2), Bundle(1, 2)]) == (
        "1 times 1 CPUs, and 2 times 1 CPUs and 2 GPUs of one node"
    )
    free = [NodeResources("a", 1, 0), NodeResources("b", 0, 2)]
    total = [NodeResources("a", 4, 0), NodeResources("b", 2, 4)]
    assert describe_nodes(free, total) == (
        "a has 1 of 4 CPUs and 0 of 0 GPUs free; b has 0 of 2 CPUs and 2 of 4 GPUs free"
    )
