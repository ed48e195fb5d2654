"""Explorer and trainer as Ray actors: the same run, wherever it is and whatever befalls it."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

import strop
from strop.config.schema import Run
from strop.errors import PlacementError
from strop.run.apart.gpus import gpus_of

from .test_apart import rows_of, states_of
from .test_launch import start, wait_for

pytest.importorskip("ray")
RAY = {"type": "ray", "logs_by_node": True, "timeline": True}


def kill_one(process: Any, number: int) -> None:
    found = sorted(
        (child.create_time(), child.pid)
        for child in psutil.Process(process.pid).children(recursive=True)
        if child.is_running() and "ray::PartActor" in " ".join(child.cmdline()[:1])
    )
    os.kill(found[number][1], signal.SIGKILL)


def test_a_run_on_ray_is_the_run_in_one_process_though_an_actor_is_killed_and_it_is_stopped(values, tmp_path):
    whole = strop.train(strop.load(values(name="one")))
    run = values(name="two", cluster=RAY)
    folder = tmp_path / "runs" / "strop" / "two"
    process = start(tmp_path, run)
    wait_for(folder / "metrics.jsonl", lines=2, process=process)
    kill_one(process, 1)
    wait_for(folder / "metrics.jsonl", lines=4, process=process)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=180)
    assert "actor died" in said and "placed again" in said
    assert "Traceback" not in said
    if process.returncode:  # it may have been through before it heard
        assert process.returncode == 128 + signal.SIGTERM, said
        assert "Explorer and trainer have saved their states" in said
        process = start(tmp_path, run)
        said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert rows_of(folder) == rows_of(whole.folder)
    weights = "model.safetensors"
    assert (folder / "model" / weights).read_bytes() == (whole.model / weights).read_bytes()
    assert set(states_of(folder).values()) == {"done"}
    logs = sorted(path.name for path in (folder / "log").glob("*/*.log"))
    assert logs == ["explorer.log", "trainer.log"]
    assert json.loads((folder / "monitor" / "timeline.json").read_text())


@pytest.mark.faults
def test_a_cluster_that_is_too_small_or_not_there_is_said_so_and_not_waited_for(values):
    began = time.monotonic()
    with pytest.raises(PlacementError, match=r"wants 3 nodes .* of the cluster's 1 nodes 1 have as many"):
        strop.train(strop.load(values(cluster={"type": "ray", "nodes": 3})))
    with pytest.raises(PlacementError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        strop.train(strop.load(values(cluster={"type": "ray", "address": "127.0.0.1:9"})))
    assert time.monotonic() - began < 120


FAULTS = {
    "memory": ({"synchronizer": "memory"}, "on Ray explorer and trainer are two actors"),
    "mode": ({"mode": "explore"}, "mode explore is one of them"),
    "queue": ({"buffer": "queue"}, "is in the memory of one process"),
    "names": ({"cluster": {"type": "ray", "explorer": "trainer"}}, "both named 'trainer'"),
}


@pytest.mark.parametrize(("changes", "message"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_on_ray_is_refused_before_the_start(values, changes, message):
    with pytest.raises(ValidationError, match=message):
        Run.model_validate(values(**{"cluster": {"type": "ray"}, **changes}))


@pytest.mark.parametrize(
    ("nodes", "per_node", "ranks", "expected"),
    [(1, 0, 1, (0, 0)), (1, 1, 1, (0.5, 0.5)), (1, 8, 1, (1, 1)), (2, 4, 4, (1, 4))],
)
def test_gpus_are_divided(values, nodes, per_node, ranks, expected):
    cluster = {"type": "ray", "nodes": nodes, "gpus_per_node": per_node}
    engine = {"type": "fsdp2", "ranks": ranks}
    run = Run.model_validate(values(cluster=cluster, trainer__engine=engine))
    assert tuple(gpus_of(run, run.cluster).values()) == expected


def test_ranks_without_gpus_for_them_are_refused(values):
    cluster = {"type": "ray", "nodes": 1, "gpus_per_node": 4}
    run = Run.model_validate(values(cluster=cluster, trainer__engine={"type": "fsdp2", "ranks": 4}))
    with pytest.raises(PlacementError, match="have 4 in all; the trainer wants 4"):
        gpus_of(run, run.cluster)
