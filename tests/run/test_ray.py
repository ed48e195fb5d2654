"""Explorer, trainer, ranks and engines as Ray actors: placement, restarts and errors."""

from __future__ import annotations

import json
import signal
from ipaddress import ip_address

import datasets
import pytest

import strop
from strop.config.load.loader import load_values
from strop.config.schema import Run
from strop.errors import ConfigError, PlacementError, StropError
from strop.pipelines.tasks import order
from strop.run.distributed.placement import engine_gpus, role_gpus
from strop.run.distributed.ray_cluster import CLUSTER_MARKER, RayRoleSpec
from strop.run.distributed.role import RoleSpec
from strop.run.entry.prepare_data import prepare_data
from strop.workers.connection import Address
from tests.files import digest
from tests.kill_log import record_kill

from .groups_by_id import states as states_of
from .results import WEIGHTS, train
from .test_distributed import rows_of
from .test_launch import group_ids, start, wait_for
from .test_ranks import close, on

ray = pytest.importorskip("ray")
from .clusters import kill  # noqa: E402

pytest_plugins = ["tests.run.clusters"]
pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def cluster(head):
    """Two nodes of two CPUs."""
    with head.added(2, 2):
        yield head


def finish(process) -> str:
    output = process.finish()
    assert "Traceback" not in output and "(raylet" not in output, output
    return output


def on_cluster(values, cluster, name, **changes):
    """A run whose actors have names, and whose logs are by node."""
    section = cluster.section(logs_by_node=True, timeline=True, trainer="learner")
    buffer = {"type": "queue", "name": "experiences"}
    return values(name=name, cluster=section, buffer=buffer, synchronizer="collective", **changes)


def wait_for_steps(folder, process, steps):
    """Wait for the row of a step. The addresses of servers have a certificate wherever another host can reach them."""
    wait_for(folder / "metrics.jsonl", lines=steps + 1, process=process)
    for file in ("buffer-address.json", "sync/address.json"):
        address = Address.load(folder / file)
        assert address is not None
        assert (address.certificate is None) == ip_address(address.host).is_loopback


def assert_logged(folder, *actors):
    assert sorted(path.stem for path in (folder / "log").glob("*/*.log")) == sorted(actors)
    assert json.loads((folder / "monitor" / "timeline.json").read_text())


@pytest.mark.slow
def test_killed_ranks_and_engines_are_restarted_and_the_metrics_stay(values, tmp_path, cluster):
    length = {"trainer__duration": "10 steps", "checkpoint__every": "1 steps"}
    reference = train(values(name="one", **length)).folder
    pool = {"trainer__engine": on(2), "rollout__pool": {"engines": 1}}
    folder = tmp_path / "runs" / "strop" / "killed"
    process = start(tmp_path, on_cluster(values, cluster, "killed", **pool, **length))
    with cluster.joined("killed"):
        for step, name in ((1, "explorer-engine-0"), (3, "learner-rank-1")):
            wait_for_steps(folder, process, step)
            assert ray.get_actor("experiences", namespace="strop/killed")
            assert kill(name)
            record_kill(f"Ray actor, {name}")
    output = finish(process)
    assert "explorer-engine-0 ended with its actor" in output and "(restart 1 of 3)" in output
    assert "Rank 1 of the trainer ended with its actor" in output and "It is restarted" in output
    close(rows_of(folder), rows_of(reference))
    assert states_of(folder) == dict.fromkeys(group_ids(10), "done")
    assert_logged(folder, "experiences", "explorer", "explorer-engine-0", "learner", "learner-rank-1")


@pytest.mark.slow
@pytest.mark.nightly
def test_a_stopped_and_resumed_run_equals_the_run_in_one_process(values, tmp_path, cluster):
    reference = train(values(name="one")).folder
    run = on_cluster(values, cluster, "two")
    folder = tmp_path / "runs" / "strop" / "two"
    process = start(tmp_path, run)
    wait_for_steps(folder, process, 1)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "Explorer and trainer have saved their states" in output
    finish(start(tmp_path, run))
    assert rows_of(folder) == rows_of(reference)
    assert digest(folder / "model" / WEIGHTS) == digest(reference / "model" / WEIGHTS)
    assert states_of(folder) == dict.fromkeys(group_ids(4), "done")
    assert_logged(folder, "experiences", "explorer", "learner")


@pytest.mark.slow
def test_a_cluster_with_too_few_resources_is_refused_before_the_start(values, cluster):
    def refused(match, **changes):
        section = cluster.section(start_timeout_seconds=1) | changes.pop("cluster", {})
        with pytest.raises(PlacementError, match=match):
            strop.train(strop.load(values(cluster=section, **changes)))

    refused(r"needs 4 nodes .* 3 of the cluster's 3 nodes have that many .*--here", cluster={"nodes": 4})
    refused(r"needs 1 nodes with 8 GPUs each, and 0 of .* have that many", cluster={"gpus_per_node": 8})
    refused(r"needs 5 CPUs, .* 3 nodes have 4 in all", trainer__engine=on(4))
    refused(r"no Ray cluster answers at 127\.0\.0\.1:9", cluster={"address": "127.0.0.1:9"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpus", "name", "timeout", "match"),
    [
        (
            4,
            "other",
            10,
            r"the trainer's ranks did not fit on the nodes within 10 s.* 1 CPUs; .* has 0 of 2 CPUs",
        ),
        (1, "explorer", 60, r"another run has an actor 'explorer' in this namespace\. Write another"),
    ],
    ids=["full", "name"],
)
def test_a_cluster_without_free_resources_or_with_a_taken_name_is_refused(
    values, cluster, cpus, name, timeout, match
):
    class OtherActor:
        """An actor of another program. Defined here, so that it is sent whole and imports no module of the tests."""

    names = [name, *(f"sitting-{number}" for number in range(1, cpus))]
    with cluster.joined():
        cluster.wait_until_free()
        options = {"num_cpus": 1, "lifetime": "detached"}
        others = [ray.remote(OtherActor).options(name=one, **options).remote() for one in names]
        ray.get([other.__ray_ready__.remote() for other in others])
    try:
        section = cluster.section(start_timeout_seconds=timeout)
        with pytest.raises(StropError, match=match) as caught:  # the explorer is the first actor
            strop.train(strop.load(values(cluster=section, buffer="sql")))
        assert caught.value.exit_code == 2
    finally:
        with cluster.joined():
            for one in names:
                ray.kill(ray.get_actor(one))


FAULTS = {
    "memory": ({"synchronizer": "memory"}, "on Ray they are two actors"),
    "mode": ({"mode": "explore"}, "mode explore is one of them"),
    "buffer": ({"buffer": {"type": "queue", "name": "trainer"}}, "two actors .* have the name 'trainer'"),
    "names": ({"cluster": {"type": "ray", "explorer_name": "trainer"}}, "are both 'trainer'"),
}


@pytest.mark.parametrize(("changes", "message"), FAULTS.values(), ids=FAULTS)
def test_runs_that_cannot_use_ray_are_refused_before_the_start(values, changes, message):
    with pytest.raises(ConfigError, match=message):
        load_values(values(**{"cluster": {"type": "ray"}, **changes}))


@pytest.mark.parametrize(
    ("nodes", "per_node", "ranks", "expected"),
    [(1, 0, 1, (0, 0)), (1, 1, 1, (0.5, 0.5)), (1, 8, 1, (1, 1)), (2, 4, 4, (1, 1))],
)
def test_gpus_are_divided(values, nodes, per_node, ranks, expected):
    cluster = {"type": "ray", "nodes": nodes, "gpus_per_node": per_node}
    engine = {"type": "fsdp2", "ranks": ranks}
    run = Run.model_validate(values(cluster=cluster, trainer__engine=engine))
    assert tuple(role_gpus(run).values()) == (0, *expected)


@pytest.mark.parametrize(
    ("nodes", "per_node", "engines", "expected"),
    [(1, 0, 2, (0, 0, 0)), (1, 1, 2, (0, 0.5, 0.25)), (1, 8, 6, (0, 1, 1)), (2, 4, 6, (0, 1, 1))],
)
def test_gpus_are_divided_where_the_explorer_has_several_engines(values, nodes, per_node, engines, expected):
    cluster = {"type": "ray", "nodes": nodes, "gpus_per_node": per_node}
    pool = {"rollout__pool": {"engines": engines}, "trainer__engine": {"type": "fsdp2", "ranks": 1}}
    run = Run.model_validate(values(cluster=cluster, **pool))
    each = role_gpus(run)
    assert (each["explorer"], each["trainer"], engine_gpus(run)) == expected
    more = Run.model_validate(values(cluster=cluster, **pool, rollout__pool__engines=8))
    if nodes * per_node > 1:
        with pytest.raises(PlacementError, match=r"and 8 engines \(rollout\.pool\.engines\) 8"):
            role_gpus(more)


def test_ranks_without_gpus_for_them_are_refused(values):
    cluster = {"type": "ray", "nodes": 1, "gpus_per_node": 4}
    run = Run.model_validate(values(cluster=cluster, trainer__engine={"type": "fsdp2", "ranks": 4}))
    with pytest.raises(
        PlacementError, match=r"needs 4 GPUs .*, and the explorer one; there is 1 node with 4 GPUs"
    ):
        role_gpus(run)


def test_a_node_that_does_not_see_the_runs_folder_is_refused(tmp_path):
    (tmp_path / CLUSTER_MARKER).write_text("another disk's")
    with pytest.raises(PlacementError, match=r"trainer was placed, does not see the run's folder"):
        RayRoleSpec(RoleSpec("trainer", None, None, []), tmp_path, "mark").check_folder()


OPERATOR = """
import os
from pathlib import Path
import ray

class Where:
    adds = ("node",)
    def __init__(self, marker):
        self.marker = Path(marker)
    def __call__(self, rows):
        if ray.is_initialized() and not self.marker.exists():
            self.marker.touch()
            os._exit(1)  # Ray repeats the task in another process
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
        return [{**row, "node": node} for row in rows if row["answer"] != "9"]
"""


@pytest.mark.slow
def test_task_operators_run_on_the_nodes(values, tmp_path, monkeypatch, cluster):
    """The rows are those of one process, though the first task's process is lost."""
    monkeypatch.setattr(order, "ROWS_PER_PART", 20)
    (tmp_path / "where.py").write_text(OPERATOR)
    operator = {"type": "custom", "operator": f"{tmp_path / 'where.py'}:Where"}

    def prepared(name, processes, more):
        args = {"marker": str(tmp_path / f"{name}.marker")}
        pipeline = {"operators": [operator | {"args": args}], "processes": processes}
        result = prepare_data(strop.load(values(name=name, data__pipeline=pipeline, **more)).run)
        assert result is not None
        return datasets.load_from_disk(str(result.data)).to_list()

    one = prepared("one", 1, {})
    found = prepared("two", 2, {"cluster": cluster.section(), "synchronizer": "checkpoint", "buffer": "sql"})
    assert (tmp_path / "two.marker").exists() and all(row["node"] for row in found)
    assert [row | {"node": ""} for row in found] == one and 0 < len(one) < 100
