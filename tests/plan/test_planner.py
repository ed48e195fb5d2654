"""The planner: properties of every plan, hand-worked cases, and what it refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strop.config.machine import GIB, Machine, Node, uniform_machine
from strop.errors import PlacementError
from strop.plan.memory import MemoryNeed
from strop.plan.placement import PlacementPlan, least_memory, plan_placement, used_gpus
from strop.plan.request import PlacementRequest, ProcessRequest


def request(
    ranks: int,
    engines: int,
    each: int = 1,
    *,
    rank_memory: MemoryNeed | None = None,
    engine_memory: MemoryNeed | None = None,
    **options: Any,
) -> PlacementRequest:
    return PlacementRequest(
        tuple(ProcessRequest(f"rank {n}", "trainer", 1, (), rank_memory) for n in range(ranks)),
        tuple(ProcessRequest(f"engine {n}", "engine", each, (), engine_memory) for n in range(engines)),
        **options,
    )


def places(plan: PlacementPlan) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {placed.process.name: (placed.node.name, placed.gpus) for placed in plan.processes}


machines = st.lists(st.integers(0, 9), min_size=1, max_size=4).map(
    lambda counts: Machine(tuple(Node(f"node-{i}", gpus, 80 * GIB) for i, gpus in enumerate(counts)))
)
needs = st.none() | st.builds(
    MemoryNeed,
    st.integers(0, 90 * GIB),
    st.integers(0, 40 * GIB),
    st.none() | st.floats(0.05, 1),
    st.booleans(),
)
requests = st.builds(
    request,
    st.integers(1, 12),
    st.integers(0, 8),
    st.integers(1, 5),
    rank_memory=needs.map(lambda need: need and MemoryNeed(need.resident, need.working)),
    engine_memory=needs,
    colocated=st.none() | st.booleans(),
    in_turns=st.booleans(),
    shares_single_gpu_only=st.booleans(),
    on_cpu=st.booleans(),
    ranks_per_group=st.integers(1, 4),
)


@given(requests, machines)
def test_every_plan_is_possible(asked: PlacementRequest, machine: Machine) -> None:
    try:
        plan = plan_placement(asked, machine)
    except PlacementError as error:
        assert len(str(error)) > 40
        with pytest.raises(PlacementError, match="^" + str(error)[:20]):
            plan_placement(asked, machine)
        return
    assert plan == plan_placement(asked, machine), "the same input gives the same plan"
    names = Counter(placed.process.name for placed in plan.processes)
    assert names == Counter(each.name for each in (*asked.ranks, *asked.samplers)), "each is placed once"
    if asked.on_cpu or not machine.gpus:
        assert all(placed.gpus == () for placed in plan.processes)
        return
    for placed in plan.processes:
        assert placed.node in machine.nodes, "an engine's GPUs are on one node"
        assert len(set(placed.gpus)) == len(placed.gpus) == placed.process.gpus
        assert all(0 <= gpu < placed.node.gpus for gpu in placed.gpus)
    for node, _, on_gpu in used_gpus(plan):
        ranks = [placed for placed in on_gpu if placed.process.role == "trainer"]
        assert len(ranks) <= 1
        assert plan.is_shared or len(on_gpu) == 1
        used = least_memory(plan, on_gpu)
        assert used is None or used <= (node.gpu_bytes or 0), "no GPU is over-committed"
    size = asked.ranks_per_group
    if not plan.is_shared and size <= max(node.gpus for node in machine.nodes):
        of_ranks = [placed.node for placed in plan.processes if placed.process.role == "trainer"]
        groups = [set(of_ranks[first : first + size]) for first in range(0, len(of_ranks), size)]
        assert all(len(nodes) == 1 for nodes in groups), "a group of ranks is on one node"
    if plan.is_shared:
        assert asked.colocated is not False
        assert not asked.shares_single_gpu_only or machine.gpus == 1 or asked.colocated


@given(st.integers(1, 9), st.integers(0, 5), st.integers(1, 4), st.integers(1, 3), st.integers(1, 8))
def test_ranks_and_engines_are_apart_wherever_they_fit(
    ranks: int, engines: int, each: int, nodes: int, gpus: int
) -> None:
    """Exactly where whole engines fill nodes, and the ranks fit into what is left."""
    fits = each <= gpus and engines <= nodes * (gpus // each) and ranks + engines * each <= nodes * gpus
    asked = request(ranks, engines, each, colocated=False)
    if fits or (not engines and ranks <= nodes * gpus):
        assert not plan_placement(asked, uniform_machine(nodes, gpus)).is_shared
    else:
        with pytest.raises(PlacementError):
            plan_placement(asked, uniform_machine(nodes, gpus))


def test_ranks_come_first_and_engines_stay_on_one_node() -> None:
    plan = plan_placement(request(5, 3, 2), uniform_machine(2, 6))
    assert places(plan) == {
        **{f"rank {n}": ("node-0", (n,)) for n in range(5)},
        "engine 0": ("node-1", (0, 1)),
        "engine 1": ("node-1", (2, 3)),
        "engine 2": ("node-1", (4, 5)),
    }
    one = plan_placement(request(4, 2, 2), uniform_machine(1, 8))
    assert places(one)["engine 1"] == ("node-0", (6, 7))


def test_groups_of_ranks_stay_on_one_node() -> None:
    """Three GPUs a node hold one group of two; a group that no node can hold fills the nodes."""
    plan = plan_placement(request(4, 1, 1, ranks_per_group=2), uniform_machine(2, 3))
    assert [name for name, _ in places(plan).values()] == ["node-0", "node-0", "node-1", "node-1", "node-1"]
    wide = plan_placement(request(8, 0, ranks_per_group=8), uniform_machine(2, 4))
    assert [name for name, _ in places(wide).values()] == ["node-0"] * 4 + ["node-1"] * 4


def test_colocated_engines_use_the_gpus_of_the_ranks() -> None:
    plan = plan_placement(request(4, 2, 2, colocated=True), uniform_machine(1, 8))
    assert plan.is_shared
    assert places(plan)["engine 0"] == ("node-0", (0, 1)) and places(plan)["engine 1"] == ("node-0", (2, 3))


def test_too_few_gpus_make_them_share() -> None:
    assert plan_placement(request(2, 2), uniform_machine(1, 2)).is_shared
    assert not plan_placement(request(2, 2), uniform_machine(1, 4)).is_shared


GPU = uniform_machine(1, 2, 80 * GIB)


IN_GROUPS = request(4, 5, ranks_per_group=4, shares_single_gpu_only=True)
SMALL_SHARE = request(1, 1, engine_memory=MemoryNeed(14 * GIB, 3 * GIB, 0.2, fraction_key="the.key"))
LARGE = request(2, 2, rank_memory=MemoryNeed(60 * GIB, 9 * GIB), engine_memory=MemoryNeed(0, 0, 0.5))


@pytest.mark.parametrize(
    ("asked", "machine", "message"),
    [
        (request(9, 0), uniform_machine(1, 8), r"needs 9 GPUs, .*there is 1 node with 8 GPUs"),
        (request(1, 1, 4), uniform_machine(4, 2), r"needs 4 GPUs of one node .*4 nodes with 2 GPUs each"),
        (
            *(request(6, 0, ranks_per_group=2), uniform_machine(2, 3)),
            r"needs 6 GPUs in groups of 2, each on one node .*tensor_parallel is 2\); there is 2 nodes with 3 GPUs",
        ),
        (
            *(IN_GROUPS, Machine((Node("a", 5), Node("b", 3)))),
            r"4 GPUs \(trainer.engine.ranks\), 4 of one node for each group",
        ),
        (
            *(request(2, 1, colocated=False), uniform_machine(1, 2)),
            r"2 GPUs \(trainer.engine.ranks\), and 1 eng",
        ),
        (
            *(SMALL_SHARE, GPU),
            r"the\.key 0\.2 of 80\.0 GiB gives engine 0 16\.0 GiB .*weights need 14\.0 GiB.*length 3\.0 GiB",
        ),
        (
            *(LARGE, GPU),
            r"GPU 0 of node-0 has 80\.0 GiB, and rank 0 and engine 0 need 100\.0 GiB at the same time",
        ),
    ],
    ids=["ranks", "tensor parallel", "groups", "groups and engines", "apart", "engine", "memory"],
)
def test_what_is_missing_is_said(asked: PlacementRequest, machine: Machine, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        plan_placement(asked, machine)


def test_released_memory_is_free_for_the_other_phase() -> None:
    rank, engine = MemoryNeed(30 * GIB, 30 * GIB), MemoryNeed(10 * GIB, 0, 0.5, is_released=True)
    plan = plan_placement(request(2, 2, rank_memory=rank, engine_memory=engine), GPU)
    ((_, _, first), _) = used_gpus(plan)
    assert least_memory(plan, first) == (30 + 40) * GIB, "the rank keeps its weights while the engine samples"
