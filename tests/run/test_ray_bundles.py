"""Ranks and engines on the nodes of a real Ray cluster: groups of ranks stay together, or are refused.

The actors are those of a run; what they run only reports where they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

from strop.config.schema import Run
from strop.errors import PlacementError
from strop.run.distributed.placement import actor_placement, engine_placement, ray_rank_placement, role_gpus
from strop.run.distributed.ray_cluster import reserve_bundles
from strop.workers.start import start_worker

ray = pytest.importorskip("ray")
pytest_plugins = ["tests.run.clusters"]
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


def place() -> tuple[str, str]:
    """Ray's id of this process's node, and the GPUs that it sees."""
    return ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"]


def report(channel):
    """Target of a rank or an engine."""
    channel.send(place())
    channel.receive()


def report_all(channel):
    """Target of the trainer or the explorer: starts its other processes as a run does, and reports all places."""
    run, names, of_ranks = channel.receive()
    placement = ray_rank_placement(run, run.cluster) if of_ranks else engine_placement(run)
    workers = [start_worker(name, report, placement) for name in names]
    channel.send([place(), *(worker.receive() for worker in workers)])
    channel.receive()


def places_of(run: Run, role: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """The places of a role's process and of those that it starts."""
    bundles = reserve_bundles(run, run.cluster)
    slot = bundles.slot(role, None)
    placement = actor_placement(run, run.cluster, role_gpus(run)[role], bundles={role: slot})
    worker = start_worker(role, report_all, placement)
    worker.send((run, names, role == "trainer"))
    try:
        return worker.receive()
    finally:
        worker.kill()


def run_of(values, head, engine: dict, *, section: dict | None = None, **changes) -> Run:
    of_ray = head.section(**(section or {}))
    return Run.model_validate(values(cluster=of_ray, trainer__engine={"type": "fsdp2", **engine}, **changes))


def test_groups_of_ranks_are_not_divided(values, head):
    """Seven processes on nodes of 3, 3 and 2 CPUs: each node has one group of two ranks. No node can hold a group of
    six."""
    names = [f"rank-{rank}" for rank in range(1, 6)]
    short = {"start_timeout_seconds": 5}
    too_wide = run_of(values, head, {"ranks": 9, "sequence_parallel": 3}, section=short)
    refusal = (
        r"the trainer's ranks, in groups of 3 on one node .* within 5 s\. They need 3 times 3 CPUs of one "
        r"node; .* has 3 of 3 CPUs and 0 of 0 GPUs free"
    )
    with head.added(3, 3, 2) as added:
        with head.joined():
            places = places_of(run_of(values, head, {"ranks": 6, "sequence_parallel": 2}), "trainer", names)
            found = [node for node, _ in places]
            assert found[0::2] == found[1::2] and len(set(found)) == 3
            assert set(found) == {node.node_id for node in added}
        with head.joined():
            wide = run_of(values, head, {"ranks": 6, "tensor_parallel": 6})
            bundles = reserve_bundles(wide, wide.cluster).ranks
            assert [bundles.processes(index) for index in bundles.nodes] == [3, 3]
            assert len(set(bundles.nodes.values())) == 2
        with head.joined(), pytest.raises(PlacementError, match=refusal):
            reserve_bundles(too_wide, too_wide.cluster)


@pytest.mark.nightly
def test_actors_see_the_gpus_of_their_bundles(values, head):
    """Logical GPUs: 4 ranks fill one node, and two engines of 2 GPUs the second node."""
    run = run_of(
        values,
        head,
        {"ranks": 4},
        section={"nodes": 2, "gpus_per_node": 4},
        rollout={"engine": {"type": "vllm", "tensor_parallel": 2}, "pool": {"engines": 2}},
    )
    with head.added(4, 4, gpus=4):
        with head.joined():
            ranks = places_of(run, "trainer", ["rank-1", "rank-2", "rank-3"])
        with head.joined():
            explorer, *engines = places_of(run, "explorer", ["engine-0", "engine-1"])
    assert sorted(gpus for _, gpus in ranks) == ["0", "1", "2", "3"] and len({node for node, _ in ranks}) == 1
    assert explorer[1] == "", "the engines are actors of their own"
    assert sorted(sorted(gpus.split(",")) for _, gpus in engines) == [["0", "1"], ["2", "3"]]
    assert len({node for node, _ in engines}) == 1
