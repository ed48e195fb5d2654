"""The processes of distributed runs, killed and restarted: the result is that of an undisturbed run.

CI kills a process of each role once, at a fixed step; the nightly run kills at random moments, under every style.
Under the style `fixed` metrics and weights equal those of the undisturbed run bit for bit, so each group was trained on
exactly once, in its order; under the others the groups' ids show it.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy

from tests.buffer.postgres import running_server
from tests.cases import nightly
from tests.files import digest
from tests.kill_log import kills, record_kill

from .command import Command
from .groups_by_id import assert_as_often_as_allowed, assert_each_once
from .groups_by_id import states as states_of
from .results import WEIGHTS, train
from .test_distributed import rows_of, run_distributed
from .test_launch import group_ids, kill_one, start, wait_for
from .test_ranks import on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STEPS = 12
FIXED = {"type": "fixed", "max_lead": "1 steps"}
BOUNDED = {"type": "bounded", "max_staleness": "2 steps"}
CURRICULUM = {"type": "curriculum", "target": [0.1, 0.9], "success_reward": 0.2, "exploration": 0.25}


@dataclass(frozen=True)
class Case:
    """A distributed run, and the processes that are killed in turns."""

    victims: Sequence[str]
    style: Mapping[str, str] = field(default_factory=lambda: FIXED)
    transport: str = "checkpoint"
    changes: Mapping[str, Any] = field(default_factory=dict)

    def values(self, values: Any, name: str, **changes: Any) -> dict[str, Any]:
        """The run file; `changes` come last."""
        restarts = max(3, 2 * KILLS)
        section = {"type": self.transport, "style": dict(self.style), "max_restarts": restarts}
        shared = {
            "synchronizer": section,
            "trainer__duration": f"{STEPS} steps",
            "checkpoint__every": "3 steps",
            "evaluate__every": "4 steps",
            "algorithm__rollouts_per_task": 8,
            "data__max_response_tokens": 16,
            "buffer": "sql",
        }
        return values(name=name, **shared | dict(self.changes) | changes)


KILLS = kills(2, sources=4)
BOTH = ("explorer", "trainer")
CASES = {
    "explorer and trainer": Case(
        BOTH, changes={"data__order": CURRICULUM, "record__rollouts_every": "1 steps"}
    ),
    "buffer, rank and engine": Case(
        ("buffer", "rank-1", "engine-0"),
        {"type": "fixed"},
        "collective",
        {"buffer": "queue", "trainer__engine": on(2), "rollout__pool": {"engines": 1}},
    ),
}
AT_NIGHT = {
    "explorer": Case(BOTH[:1], changes=CASES["explorer and trainer"].changes),
    "bounded": Case(BOTH, BOUNDED),
    "bounded, collective": Case(BOTH, BOUNDED, "collective"),
    "fixed": Case(BOTH),
    "fixed, collective": Case(BOTH, FIXED | {"every": "2 steps"}, "collective"),
    "on request, collective": Case(BOTH, {"type": "on_request", "every": "2 steps"}, "collective"),
    "queue": Case(("buffer",), changes={"buffer": "queue"}),
    "priority queue": Case(("buffer",), BOUNDED, changes={"buffer": "priority"}),
}


def kill_in_turns(
    process: Command,
    metrics: Path,
    victims: Sequence[str],
    draw: random.Random | None,
    kill: Callable[[Command, str], bool] = kill_one,
) -> None:
    """Kill these processes of a run one after the other: every two steps, or at random moments of its first half.

    `kill` returns whether the process ran.
    """
    for number, name in enumerate(victims):
        lines = 2 * number + 2 if draw is None else draw.randrange(2, STEPS // 2 + 1)
        wait_for(metrics, lines=lines, process=process)
        if draw is not None:
            time.sleep(draw.uniform(0, 0.5))
        while not kill(process, name):  # it is being started again
            assert process.poll() is None, "the run had ended before"
            time.sleep(0.02)
        record_kill(f"distributed run, {name}")


def assert_complete(case: Case, folder: Path, output: str) -> None:
    """Every process was restarted, and each group trained on exactly once."""
    engines = case.victims.count("engine-0")
    assert output.count("Restarting it with its latest weights and its pending requests") == engines
    assert output.count("It is restarted") == len(case.victims) - engines
    assert "Traceback" not in output
    everything = group_ids(STEPS)
    assert_each_once(folder, everything)
    assert states_of(folder) == dict.fromkeys(everything, "done")
    rows = rows_of(folder)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert all("loss" in row and "reward/mean" in row for row in rows[1:])
    if case.style["type"] == "bounded":
        assert max(row["staleness/max"] for row in rows[1:]) <= 2
    assert not (folder / "buffer-address.json").exists()


@pytest.mark.parametrize(
    ("name", "number"),
    [*((name, None) for name in CASES), *nightly(*((name, 0) for name in CASES | AT_NIGHT))],
)
def test_a_run_whose_processes_are_killed_equals_an_undisturbed_run(values, tmp_path, name, number):
    """The success rates that a curriculum's later draws depend on are part of the explorer's state."""
    case = (CASES | AT_NIGHT)[name]
    victims, draw = case.victims, None
    if number is not None:
        victims = [victims[at % len(victims)] for at in range(max(KILLS, len(victims)))]
        case, draw = replace(case, victims=victims), random.Random(KILLS)
    process = start(tmp_path, case.values(values, "killed"))
    folder = tmp_path / "runs" / "strop" / "killed"
    kill_in_turns(process, folder / "metrics.jsonl", victims, draw)
    output = process.finish()
    assert_complete(case, folder, output)
    if "rank-1" in victims:
        assert "Rank 1 of the trainer ended by signal 9" in output
    if "buffer" in victims:
        assert "The buffer ended by signal 9 (Killed). It is restarted from its last saved state" in output
    if case.style["type"] == "fixed":
        if "max_lead" in case.style:
            reference = run_distributed(case.values(values, "reference", buffer="sql"))
        else:
            reference = train(case.values(values, "reference", buffer="sql", synchronizer="memory")).folder
        assert rows_of(folder) == rows_of(reference)
        assert digest(folder / "model" / WEIGHTS) == digest(reference / "model" / WEIGHTS)
        assert_same_draws(folder, reference)


@pytest.mark.nightly
def test_a_run_with_postgresql_equals_an_undisturbed_run_after_kills_of_its_processes_and_of_the_server(
    values, tmp_path
):
    """A server that is killed takes all its sessions with it, and recovers from its log at its next start."""
    pytest.importorskip("psycopg")
    case = Case((*BOTH, "PostgreSQL"))
    victims = [case.victims[at % len(case.victims)] for at in range(kills(len(case.victims)))]
    with running_server() as server:

        def kill(process: Command, name: str) -> bool:
            if name != "PostgreSQL":
                return kill_one(process, name)
            server.stop(signal.SIGQUIT)
            server.start()
            return True

        buffer = {"type": "sql", "url": server.url}
        process = start(tmp_path, replace(case, victims=victims).values(values, "killed", buffer=buffer))
        folder = tmp_path / "runs" / "strop" / "killed"
        kill_in_turns(process, folder / "metrics.jsonl", victims, random.Random(len(victims)), kill)
        output = process.finish()
        with sqlalchemy.create_engine(
            server.url.replace("postgresql:", "postgresql+psycopg:")
        ).connect() as database:
            states = dict(database.execute(sqlalchemy.text("SELECT id, state FROM strop_groups")).all())
    assert "Traceback" not in output, output
    assert states == dict.fromkeys(group_ids(STEPS), "done")
    reference = run_distributed(case.values(values, "reference"))
    assert rows_of(folder) == rows_of(reference)
    assert digest(folder / "model" / WEIGHTS) == digest(reference / "model" / WEIGHTS)


def assert_same_draws(folder: Path, reference: Path) -> None:
    """A curriculum has drawn the same tasks in each step, some of them by their success rates."""
    explored = (folder / "explorer" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(explored[-1])
    if "curriculum/explored_fraction" in last:
        drawn = read_tasks(folder)
        assert drawn == read_tasks(reference) and sorted(drawn) == list(range(1, STEPS + 1))
        assert last["curriculum/explored_fraction"] < 1


def read_tasks(folder: Path) -> dict[int, list[str]]:
    """The drawn tasks of each step that was recorded."""
    files = (folder / "explorer" / "rollouts").glob("step-*.parquet")
    return {int(file.stem[-6:]): pq.read_table(file)["task_id"].to_pylist() for file in files}


@pytest.mark.nightly
@pytest.mark.parametrize("cooldown", [None, 0.1], ids=["once", "again"])
def test_a_killed_trainer_learns_from_each_group_of_a_priority_queue_as_often_as_it_may(
    values, tmp_path, cooldown
):
    """Answers are scored slowly, so that the trainer is the quicker one."""
    run = values(
        name="killed",
        reward=f"{Path(__file__).parent / 'rewards.py'}:slowly",
        buffer={"type": "priority", "reuse_cooldown_seconds": cooldown},
        synchronizer={"type": "checkpoint", "style": {"type": "latest"}},
        trainer__duration="8 steps",
        checkpoint__every="2 steps",
        data__eval=[],
        evaluate={},
    )
    process = start(tmp_path, run)
    folder = tmp_path / "runs" / "strop" / "killed"
    wait_for(folder / "metrics.jsonl", lines=4, process=process)
    assert kill_one(process, "trainer")
    output = process.finish()
    assert "It is restarted" in output
    if cooldown is None:
        assert_each_once(folder, group_ids(8))
    else:
        assert_as_often_as_allowed(folder, folder / "buffer.db")
