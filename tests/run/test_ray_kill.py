"""Ray actors killed at random moments, and nodes lost: the result is that of an undisturbed run.

The groups' ids in the buffer show that each was trained on exactly once; the metrics are those of one process. CI kills
an engine and a rank in `test_ray.py`, and loses a node in `test_ray_elastic.py`.
"""

from __future__ import annotations

import random
import time

import psutil
import pytest

import strop
from tests.kill_log import kills, record_kill

from .groups_by_id import states as states_of
from .test_distributed import rows_of
from .test_launch import start, wait_for
from .test_ranks import close, on
from .test_ray import finish

pytest.importorskip("ray")
from .clusters import kill, pid_of

pytest_plugins = ["tests.run.clusters"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("ray"),
]
KILLS = kills(2)
STEPS = max(8, 2 * KILLS)
TASKS = 8
EVERYTHING = {f"train-{step:06d}-{n:05d}" for step in range(1, STEPS + 1) for n in range(TASKS)}
VICTIMS = ("trainer-rank-1", "explorer", "trainer")


def settings(values, name, **changes):
    return values(
        name=name,
        trainer__duration=f"{STEPS} steps",
        checkpoint__every="3 steps",
        data__max_response_tokens=16,
        **changes,
    )


def on_ray(values, name, cluster, **changes):
    synchronizer = {"type": "checkpoint", "max_restarts": KILLS + 1}
    return settings(values, name, cluster=cluster.section(), synchronizer=synchronizer, **changes)


def test_each_group_is_trained_on_once_after_kills_of_actors(values, tmp_path, head):
    draw = random.Random(KILLS)
    with head.added(3):
        process = start(tmp_path, on_ray(values, "killed", head, trainer__engine=on(2)))
        folder = tmp_path / "runs" / "strop" / "killed"
        killed = 0
        with head.joined("killed"):
            for number in range(KILLS):
                wanted = draw.randrange(1, max(2, STEPS * (number + 1) // (KILLS + 1)))
                wait_for(folder / "metrics.jsonl", lines=wanted + 1, process=process)
                time.sleep(draw.uniform(0, 1.5))
                while process.poll() is None and not kill(VICTIMS[number % len(VICTIMS)]):
                    time.sleep(0.1)  # it is being restarted
                if process.poll() is None:
                    record_kill(f"Ray actor, {VICTIMS[number % len(VICTIMS)]}")
                    killed += 1
        output = finish(process)
    assert killed > KILLS // 2
    assert 1 <= output.count("It is restarted") <= killed, "a rank and its trainer are restarted together"
    assert states_of(folder) == dict.fromkeys(EVERYTHING, "done")
    reference = strop.train(strop.load(settings(values, "reference")))
    close(rows_of(folder), rows_of(reference.folder))


def test_a_start_after_a_kill_of_the_launcher_waits_for_its_actors(values, tmp_path, head):
    """The actors of the first start end with its launcher, and the second one resumes the run."""
    with head.added(3):
        run = on_ray(values, "left", head, trainer__engine=on(1))
        folder = tmp_path / "runs" / "strop" / "left"
        process = start(tmp_path, run)
        wait_for(folder / "metrics.jsonl", lines=3, process=process)
        with head.joined("left"):
            actors = [psutil.Process(pid_of(name)) for name in ("explorer", "trainer")]
        process.kill()
        process.communicate()
        record_kill("Ray launcher")
        again = start(tmp_path, run)
        _, alive = psutil.wait_procs(actors, timeout=60)
        assert not alive
        finish(again)
    assert states_of(folder) == dict.fromkeys(EVERYTHING, "done")
    reference = strop.train(strop.load(settings(values, "reference")))
    assert rows_of(folder) == rows_of(reference.folder)


@pytest.mark.parametrize("number", range(kills(1, sources=len(VICTIMS))))
@pytest.mark.parametrize("lost", VICTIMS)
def test_the_work_of_a_lost_node_is_repeated_on_another(values, tmp_path, head, lost, number):
    """Each role has a node of its own; one node is lost with all its processes, and another one joins."""
    engine = on(2) if lost in VICTIMS[:1] else on(1)
    reference = strop.train(strop.load(settings(values, "reference")))
    with head.added(*[1] * (3 if engine == on(2) else 2)):
        process = start(tmp_path, on_ray(values, "lost", head, trainer__engine=engine))
        folder = tmp_path / "runs" / "strop" / "lost"
        wait_for(folder / "metrics.jsonl", lines=2, process=process)
        with head.joined("lost"):
            head.remove(head.node_of(lost))
            record_kill("Ray node")
            head.add(cpus=1)
        output = finish(process)
    assert "It is restarted" in output, output
    assert states_of(folder) == dict.fromkeys(EVERYTHING, "done")
    if engine == on(2):
        close(rows_of(folder), rows_of(reference.folder))
    else:
        assert rows_of(folder) == rows_of(reference.folder)
