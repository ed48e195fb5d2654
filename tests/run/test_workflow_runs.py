"""Whole runs with workflows of several turns, broken ones, agents, and models that help."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from .results import rows_of, train, trained_rows

MINE = Path(__file__).parent / "workflows.py"
ECHO = {"name": "environment", "args": {"environment": f"{MINE}:Echo"}}


@pytest.fixture
def several(values):
    """A run of several turns without a separate reward."""

    def make(**changes):
        small = {
            "rollout__workflow": ECHO,
            "rollout__max_sequence_tokens": 96,
            "algorithm__rollouts_per_task": 2,
            "trainer__tasks_per_step": 4,
            "trainer__tasks_per_update": 2,
        }
        run = values(**{**small, **changes})
        for taskset in run["data"]["eval"]:
            taskset["limit_tasks"] = min(4, taskset["limit_tasks"])
        if "reward" not in changes:
            run.pop("reward")
        return run

    return make


def test_several_turns_go_through_everything(several):
    result = train(several(record__report=True, trainer__duration="2 steps"))
    rows = rows_of(result.folder)
    assert [row["step"] for row in rows] == [0, 1, 2]
    for row in rows[1:]:
        assert row["rollouts/turns"] == 2
        assert row["logprob_diff/mean_abs"] < 1e-4
        assert row["response_tokens/max"] <= 16
        assert row["reward/part/workflow"] == pytest.approx(row["reward/mean"])
    (first, *_) = pq.read_table(result.folder / "rollouts" / "step-000002.parquet").to_pylist()
    assert first["turns"] == 2
    assert first["prompt"] in first["model_prompt"] != first["prompt"], "with the template"
    assert [m["role"] for m in json.loads(first["messages"])] == ["assistant", "user", "assistant"]
    assert "again" in (result.folder / "report.html").read_text()


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_turns_by_themselves_and_stores(several, tmp_path, algorithm):
    run = several(
        rollout__sequence_per="turn",
        trainer__duration="1 steps",
        data__eval=[],
        buffer={"type": "sql", "url": f"sqlite:///{tmp_path / 'groups.db'}"},
        algorithm={"type": algorithm, "rollouts_per_task": 2},
    )
    assert trained_rows(run)[-1]["rollouts/turns"] == 2


@pytest.mark.slow
def test_broken_and_late_rollouts_have_names_of_their_own(several):
    run = several(
        rollout__workflow=f"{MINE}:flaky",
        rollout__timeout_seconds=10,  # the others end within it also on a slow machine
        rollout__retries=1,
        rollout__max_error_fraction=0.9,
        trainer__duration="1 steps",
        data__eval=[],
        data__shuffle=False,
    )
    row = trained_rows(run)[1]
    assert row["rollouts/workflow_error_fraction"] == row["rollouts/timeout_fraction"] == 1 / 4
    assert row["rollouts/error_fraction"] == 1 / 2
    assert row["rollouts/retries"] == 4
    assert row["reward/min"] > 0, "never a zero"


def test_env_is_set_for_workflows_and_gone_afterwards(several):
    run = several(
        rollout__workflow=f"{MINE}:mood",
        rollout__env={"MOOD": "3"},
        trainer__duration="1 steps",
        data__eval=[],
    )
    assert trained_rows(run)[-1]["reward/mean"] == 3
    assert "MOOD" not in os.environ


def test_each_eval_taskset_has_its_own_workflow_sampling_and_reward(several, tiny):
    tasks = {"path": str(tiny / "tasks.jsonl"), "limit_tasks": 3}
    length = {"function": f"{MINE.parent / 'rewards.py'}:length", "weight": 10}
    sampled = {"rollouts_per_task": 3, "sampling": {"temperature": 1}}
    run = several(
        reward=f"{MINE.parent / 'rewards.py'}:digit_share",
        rollout__workflow="single_turn",
        data__eval=[
            {**tasks, "name": "plain"},
            {**tasks, "name": "talk", "workflow": ECHO, **sampled},
            {**tasks, "name": "own", "reward": {"functions": [length, {"function": "exact"}]}},
        ],
        trainer__duration="1 steps",
    )
    folder, found = train(run).folder, {}
    for name in ("plain", "talk", "own"):
        rows = pq.read_table(folder / "eval" / name / "step-000001.parquet").to_pylist()
        parts = {part for row in rows for part, _ in row["reward_parts"]}
        found[name] = ({row["turns"] for row in rows}, len(rows), parts)
    assert found == {
        "plain": ({1}, 3, {"digit_share"}),
        "talk": ({2}, 9, {"workflow", "digit_share"}),
        "own": ({1}, 3, {"length", "exact"}),
    }
    lengths = sum(len(row["text"]) for row in rows)
    assert sum(row["reward"] for row in rows) == pytest.approx(10 * lengths) and lengths > 0


def test_an_agent_is_trained_as_it_is(several):
    run = several(
        rollout__workflow={"name": "agent", "args": {"function": f"{MINE}:agent"}},
        trainer__duration="1 steps",
        data__eval=[],
    )
    row = trained_rows(run)[-1]
    assert row["rollouts/turns"] == 2
    assert row["logprob_diff/mean_abs"] < 1e-4


def test_a_model_that_helps_answers_workflows_and_judges(several, tiny):
    helper = {"name": "helper", "path": str(tiny / "model"), "max_response_tokens": 8}
    judge = {"url": "auxiliary", "model": "helper", "pattern": "(\\w)", "min_score": -1, "max_tokens": 4}
    run = several(
        rollout__workflow=f"{MINE}:asks_a_helper",
        rollout__auxiliary_models=[helper],
        rollout__max_error_fraction=1,
        trainer__duration="1 steps",
        data__eval=[],
        reward={"judges": [judge]},
    )
    folder = train(run).folder
    replies = folder / "judges" / "replies.sqlite3"
    with sqlite3.connect(replies) as database:
        (asked,) = database.execute("SELECT COUNT(*) FROM replies").fetchone()
    assert asked > 0
    assert rows_of(folder)[-1]["rollouts/count"] > 0
