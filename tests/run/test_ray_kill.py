"""Ray workers killed at random moments, and whole nodes lost: the run ends as if nothing had been.

By their ids in the buffer each group was trained on exactly once; the metrics are those of one process that
nobody disturbed. How many kills: `STROP_RAY_KILLS`, 2 unless set (`make evidence ARGS=kills` sets 10).
"""

from __future__ import annotations

import os
import random
import time

import pytest

import strop

from .test_apart import rows_of, states_of
from .test_launch import start, wait_for
from .test_ranks import close, on
from .test_ray import finish

pytest.importorskip("ray")
pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]
KILLS = int(os.environ.get("STROP_RAY_KILLS", "2"))
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


def test_each_group_is_trained_on_once_whichever_worker_is_killed(values, tmp_path):
    from .clusters import kill, nodes

    draw = random.Random(KILLS)
    with nodes(3) as cluster:
        process = start(tmp_path, on_ray(values, "killed", cluster, trainer__engine=on(2)))
        folder = tmp_path / "runs" / "strop" / "killed"
        killed = 0
        with cluster.joined("killed"):
            for number in range(KILLS):
                wanted = draw.randrange(1, max(2, STEPS * (number + 1) // (KILLS + 1)))
                wait_for(folder / "metrics.jsonl", lines=wanted + 1, process=process)
                time.sleep(draw.uniform(0, 1.5))
                while process.poll() is None and not kill(VICTIMS[number % len(VICTIMS)]):
                    time.sleep(0.1)  # it is just being placed again
                killed += process.poll() is None
        said = finish(process)
    assert killed > KILLS // 2
    assert 1 <= said.count("It is placed again") <= killed, "a rank and its trainer are placed again at once"
    assert states_of(folder) == dict.fromkeys(EVERYTHING, "done")
    whole = strop.train(strop.load(settings(values, "whole")))
    close(rows_of(folder), rows_of(whole.folder))


@pytest.mark.parametrize("lost", ["explorer", "trainer", "trainer-rank-1"])
def test_what_a_lost_node_did_is_done_again_on_another(values, tmp_path, lost):
    """Each part has a node of its own; that of one is lost, with all its processes, and another comes."""
    from .clusters import nodes

    engine = on(2) if lost in VICTIMS[:1] else on(1)
    whole = strop.train(strop.load(settings(values, "whole")))
    with nodes(0, *[1] * (3 if engine == on(2) else 2)) as cluster:
        process = start(tmp_path, on_ray(values, "lost", cluster, trainer__engine=engine))
        folder = tmp_path / "runs" / "strop" / "lost"
        wait_for(folder / "metrics.jsonl", lines=2, process=process)
        with cluster.joined("lost"):
            cluster.remove(cluster.node_of(lost))
            cluster.add(cpus=1)
        said = finish(process)
    assert "It is placed again" in said, said
    assert states_of(folder) == dict.fromkeys(EVERYTHING, "done")
    if engine == on(2):
        close(rows_of(folder), rows_of(whole.folder))
    else:
        assert rows_of(folder) == rows_of(whole.folder)
