"""Explorer, trainer and ranks as Ray actors: the same run, wherever it is and whatever befalls it."""

from __future__ import annotations

import json
import re
import signal

import pytest
from pydantic import ValidationError

import strop
from strop.config.schema import Run
from strop.errors import PlacementError
from strop.run.apart.gpus import gpus_of, gpus_of_engine
from strop.run.apart.part import Order
from strop.run.apart.ray_serve import MARK, Errand

from .groups_by_id import states as states_of
from .test_apart import rows_of
from .test_launch import group_ids, start, wait_for
from .test_ranks import close, on

ray = pytest.importorskip("ray")
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def cluster():
    from .clusters import nodes

    with nodes(2, 2) as cluster:
        yield cluster


def finish(process) -> str:
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "Traceback" not in said and "(raylet" not in said, said
    return said


def test_a_run_on_ray_is_the_run_in_one_process_though_it_is_stopped_in_between(values, tmp_path, cluster):
    whole = strop.train(strop.load(values(name="one")))
    run = values(
        name="two",
        cluster=cluster.section(logs_by_node=True, timeline=True, trainer="learner"),
        buffer={"type": "queue", "name": "experiences"},
        synchronizer="collective",
    )
    folder = tmp_path / "runs" / "strop" / "two"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=2, process=process)
    with cluster.joined("two"):
        assert ray.get_actor("experiences", namespace="strop/two")
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert "Explorer and trainer have saved their states" in said
    finish(start(tmp_path, run))
    assert rows_of(folder) == rows_of(whole.folder)
    assert (folder / "model" / WEIGHTS).read_bytes() == (whole.model / WEIGHTS).read_bytes()
    assert states_of(folder) == dict.fromkeys(group_ids(4), "done")
    logs = sorted(path.name for path in (folder / "log").glob("*/*.log"))
    assert logs == ["experiences.log", "explorer.log", "learner.log"]
    assert json.loads((folder / "monitor" / "timeline.json").read_text())


def test_a_rank_that_is_killed_is_placed_again_with_its_trainer_and_nothing_is_learned_otherwise(
    values, tmp_path, cluster
):
    from .clusters import kill

    whole = strop.train(strop.load(values(name="one")))
    run = values(name="ranks", cluster=cluster.section(), trainer__engine=on(2), checkpoint__every="1 steps")
    run["rollout"] = {"pool": {"engines": 1}}
    run["synchronizer"] = "collective"
    folder = tmp_path / "runs" / "strop" / "ranks"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=2, process=process)
    with cluster.joined("ranks"):
        assert kill("trainer-rank-1")
    said = finish(process)
    assert "Rank 1 of the trainer ended with its actor" in said and "It is placed again" in said
    close(rows_of(folder), rows_of(whole.folder))
    assert set(states_of(folder).values()) == {"done"}
    logs = {path.stem for path in (folder / "log").glob("*.log")}
    assert logs == {"explorer", "explorer-engine-0", "experience_buffer", "trainer", "trainer-rank-1"}


@pytest.mark.faults
def test_an_engine_that_is_killed_is_placed_again_and_its_explorer_goes_on(values, tmp_path, cluster):
    from .clusters import kill

    whole = strop.train(strop.load(values(name="one")))
    run = values(name="engine", cluster=cluster.section(), rollout__pool={"engines": 1})
    folder = tmp_path / "runs" / "strop" / "engine"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=2, process=process)
    with cluster.joined("engine"):
        assert kill("explorer-engine-0")
    said = finish(process)
    assert "explorer-engine-0 ended with its actor" in said and "(1 of 3 times)" in said
    close(rows_of(folder), rows_of(whole.folder))
    assert (folder / "log" / "explorer-engine-0.log").exists()


def test_too_little_of_a_cluster_is_said_before_the_start(values, cluster):
    def refused(match, **changes):
        section = cluster.section(start_timeout_seconds=1) | changes.pop("cluster", {})
        with pytest.raises(PlacementError, match=match):
            strop.train(strop.load(values(cluster=section, **changes)))

    refused(r"wants 3 nodes .* of the cluster's 2 nodes 2 have as many .*--here", cluster={"nodes": 3})
    refused(r"wants 1 nodes with 8 GPUs each, .* 0 have as many", cluster={"gpus_per_node": 8})
    refused(r"wants 5 CPUs, .* 2 nodes have 4 in all", trainer__engine=on(4))
    refused(r"no Ray cluster answers at 127\.0\.0\.1:9", cluster={"address": "127.0.0.1:9"})


class Sitting:
    """An actor of somebody else's."""


@pytest.mark.faults
@pytest.mark.parametrize(
    ("cpus", "name", "match"),
    [
        (4, "other", r"no node had room for explorer \(1 CPUs, 0 GPUs\) in 2 s; free now: 0 CPUs"),
        (1, "explorer", r"an actor 'explorer' in this namespace already, of another run\. Write another"),
    ],
    ids=["full", "name"],
)
def test_a_cluster_that_others_use_has_no_room_and_no_name(values, tmp_path, cluster, cpus, name, match):
    with cluster.joined():
        options = {"num_cpus": 1, "lifetime": "detached"}
        names = [name, *(f"sitting-{number}" for number in range(1, cpus))]
        others = [ray.remote(Sitting).options(name=one, **options).remote() for one in names]
        ray.get([other.__ray_ready__.remote() for other in others])
        process = start(tmp_path, values(cluster=cluster.section(start_timeout_seconds=2)))
        said, _ = process.communicate(timeout=120)
        for other in others:
            ray.kill(other)
    assert process.returncode == 2, said
    assert re.search(match, " ".join(said.split())), said


FAULTS = {
    "memory": ({"synchronizer": "memory"}, "on Ray explorer and trainer are two actors"),
    "mode": ({"mode": "explore"}, "mode explore is one of them"),
    "buffer": ({"buffer": {"type": "queue", "name": "trainer"}}, "two actors .* both named 'trainer'"),
    "names": ({"cluster": {"type": "ray", "explorer": "trainer"}}, "both named 'trainer'"),
}


@pytest.mark.parametrize(("changes", "message"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_on_ray_is_refused_before_the_start(values, changes, message):
    with pytest.raises(ValidationError, match=message):
        Run.model_validate(values(**{"cluster": {"type": "ray"}, **changes}))


@pytest.mark.parametrize(
    ("nodes", "per_node", "ranks", "expected"),
    [(1, 0, 1, (0, 0)), (1, 1, 1, (0.5, 0.5)), (1, 8, 1, (1, 1)), (2, 4, 4, (1, 1))],
)
def test_gpus_are_divided(values, nodes, per_node, ranks, expected):
    cluster = {"type": "ray", "nodes": nodes, "gpus_per_node": per_node}
    engine = {"type": "fsdp2", "ranks": ranks}
    run = Run.model_validate(values(cluster=cluster, trainer__engine=engine))
    assert tuple(gpus_of(run, run.cluster).values()) == (0, *expected)


@pytest.mark.parametrize(
    ("nodes", "per_node", "engines", "expected"),
    [(1, 0, 2, (0, 0, 0)), (1, 1, 2, (0, 0.5, 0.25)), (1, 8, 6, (0, 1, 1)), (2, 4, 6, (0, 1, 1))],
)
def test_gpus_are_divided_where_the_explorer_has_several_engines(values, nodes, per_node, engines, expected):
    cluster = {"type": "ray", "nodes": nodes, "gpus_per_node": per_node}
    pool = {"rollout__pool": {"engines": engines}, "trainer__engine": {"type": "fsdp2", "ranks": 1}}
    run = Run.model_validate(values(cluster=cluster, **pool))
    each = gpus_of(run, run.cluster)
    assert (each["explorer"], each["trainer"], gpus_of_engine(run, run.cluster)) == expected
    more = Run.model_validate(values(cluster=cluster, **pool, rollout__pool__engines=8))
    if nodes * per_node > 1:
        with pytest.raises(PlacementError, match=r"its engines 8 more \(rollout\.pool\.engines\)"):
            gpus_of(more, more.cluster)


def test_ranks_without_gpus_for_them_are_refused(values):
    cluster = {"type": "ray", "nodes": 1, "gpus_per_node": 4}
    run = Run.model_validate(values(cluster=cluster, trainer__engine={"type": "fsdp2", "ranks": 4}))
    with pytest.raises(PlacementError, match="have 4 in all; the trainer wants 4"):
        gpus_of(run, run.cluster)


def test_a_node_that_does_not_see_the_runs_folder_is_said(tmp_path):
    (tmp_path / MARK).write_text("another disk's")
    with pytest.raises(PlacementError, match=r"trainer was placed, does not see the run's folder"):
        Errand(Order("trainer", None, None, []), tmp_path, "mark").check_folder()
