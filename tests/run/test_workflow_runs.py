"""Whole runs with workflows of several turns, broken ones, agents, and models that help."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import strop
from strop.errors import ConfigError, RolloutError
from tests.files import digest

MINE = Path(__file__).parent / "workflows.py"
ECHO = {"name": "environment", "args": {"environment": f"{MINE}:Echo"}}
CLOCKS = ("time/", "tokens_per_second", "engine/", "memory/")


def rows_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(CLOCKS)} for row in rows]


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
    result = strop.train(strop.load(several(record__report=True)))
    rows = rows_of(result.folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    for row in rows[1:]:
        assert row["rollouts/turns"] == 2
        assert row["logprob_diff/mean_abs"] < 1e-4
        assert row["response_tokens/max"] <= 16
        assert row["reward/part/workflow"] == pytest.approx(row["reward/mean"])
    (first, *_) = pq.read_table(result.folder / "rollouts" / "step-000002.parquet").to_pylist()
    assert first["turns"] == 2
    assert [m["role"] for m in json.loads(first["messages"])] == ["assistant", "user", "assistant"]
    assert "again" in (result.folder / "report.html").read_text()


def test_a_conversation_resumes_bit_for_bit(several, monkeypatch):
    whole = strop.train(strop.load(several(name="whole")))
    checkpoint = whole.folder / "checkpoints" / "step-000002"
    again = strop.train(strop.load(several(name="again", resume=str(checkpoint))))
    assert rows_of(again.folder) == rows_of(whole.folder)[3:], "and the start is not evaluated again"
    weights = "model.safetensors"
    assert digest(again.model / weights) == digest(whole.model / weights)


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_turns_by_themselves_and_stores(several, tmp_path, algorithm):
    run = several(
        rollout__sequence_per="turn",
        trainer__duration="2 steps",
        buffer={"type": "sql", "url": f"sqlite:///{tmp_path / 'groups.db'}"},
    )
    run["algorithm"] = {"type": algorithm, "rollouts_per_task": 2}
    rows = rows_of(strop.train(strop.load(run)).folder)
    assert rows[-1]["rollouts/turns"] == 2


@pytest.mark.slow
def test_broken_and_late_rollouts_have_names_of_their_own(several):
    run = several(
        rollout__workflow=f"{MINE}:flaky",
        rollout__timeout_seconds=4,
        rollout__retries=1,
        rollout__max_error_fraction=0.9,
        trainer__duration="1 steps",
        data__eval=[],
        data__shuffle=False,
    )
    (row,) = [row for row in rows_of(strop.train(strop.load(run)).folder) if row["step"] == 1]
    assert row["rollouts/workflow_error_fraction"] == row["rollouts/timeout_fraction"] == 1 / 4
    assert row["rollouts/error_fraction"] == 1 / 2
    assert row["rollouts/retries"] == 4
    assert row["reward/min"] > 0, "never a zero"


def test_too_many_broken_ones_stop_the_run_with_the_first(several):
    run = several(rollout__workflow=f"{MINE}:breaks", data__eval=[])
    with pytest.raises(RolloutError, match=re.escape("RuntimeError: no luck")):
        strop.train(strop.load(run))


def test_a_workflow_that_never_rewards_is_said(several):
    run = several(rollout__workflow="tools", data__eval=[])
    with pytest.raises(ConfigError, match="reward: missing, so nothing scores the responses"):
        strop.train(strop.load(run))


def test_env_is_set_for_workflows_and_gone_afterwards(several):
    run = several(
        rollout__workflow=f"{MINE}:mood",
        rollout__env={"MOOD": "3"},
        trainer__duration="1 steps",
        data__eval=[],
    )
    rows = rows_of(strop.train(strop.load(run)).folder)
    assert rows[-1]["reward/mean"] == 3
    assert "MOOD" not in os.environ


def test_each_eval_taskset_has_its_own_workflow_and_sampling(several, tiny):
    tasks = {"path": str(tiny / "tasks.jsonl"), "limit_tasks": 3}
    run = several(
        reward=f"{MINE.parent / 'rewards.py'}:digit_share",
        rollout__workflow="single_turn",
        data__eval=[
            {**tasks, "name": "plain"},
            {
                **tasks,
                "name": "talk",
                "workflow": ECHO,
                "rollouts_per_task": 3,
                "sampling": {"temperature": 1},
            },
        ],
        rollout__max_sequence_tokens=96,
        trainer__duration="1 steps",
    )
    result = strop.train(strop.load(run))
    for name, turns, rollouts in (("plain", 1, 1), ("talk", 2, 3)):
        rows = pq.read_table(result.folder / "eval" / name / "step-000001.parquet").to_pylist()
        assert len(rows) == 3 * rollouts
        assert {row["turns"] for row in rows} == {turns}
    assert {name for row in rows for name, _ in row["reward_parts"]} == {"workflow", "digit_share"}


def test_each_eval_taskset_has_its_own_reward(values, tiny):
    tasks = {"path": str(tiny / "tasks.jsonl"), "limit_tasks": 3}
    length = f"{MINE.parent / 'rewards.py'}:length"
    run = values(
        data__eval=[
            {**tasks, "name": "as-trained"},
            {
                **tasks,
                "name": "own",
                "reward": {"functions": [{"function": length, "weight": 10}, {"function": "exact"}]},
            },
        ],
        trainer__duration="1 steps",
    )
    result = strop.train(strop.load(run))
    parts = {}
    for name in ("as-trained", "own"):
        rows = pq.read_table(result.folder / "eval" / name / "step-000001.parquet").to_pylist()
        parts[name] = {part for row in rows for part, _ in row["reward_parts"]}
    assert parts == {"as-trained": {"digit_share"}, "own": {"length", "exact"}}
    lengths = [len(row["text"]) for row in rows]
    assert sum(row["reward"] for row in rows) == pytest.approx(10 * sum(lengths)) and sum(lengths) > 0


def test_an_agent_is_trained_as_it_is(several):
    run = several(
        rollout__workflow={"name": "agent", "args": {"function": f"{MINE}:agent"}},
        trainer__duration="2 steps",
        data__eval=[],
    )
    rows = rows_of(strop.train(strop.load(run)).folder)
    assert rows[-1]["rollouts/turns"] == 2
    assert rows[-1]["logprob_diff/mean_abs"] < 1e-4


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
    result = strop.train(strop.load(run))
    replies = result.folder / "judges" / "replies.sqlite3"
    with sqlite3.connect(replies) as database:
        (asked,) = database.execute("SELECT COUNT(*) FROM replies").fetchone()
    assert asked > 0
    step = rows_of(result.folder)[-1]
    assert step["rollouts/count"] > 0


def test_a_judge_of_a_model_that_is_not_there_is_refused(several):
    judge = {"url": "auxiliary", "model": "helper"}
    with pytest.raises(ConfigError, match=r"there is no 'helper' in rollout\.auxiliary_models"):
        strop.load(several(reward={"judges": [judge]}))


def test_gigpo_without_states_says_where_they_come_from(several):
    run = several(
        algorithm={"type": "gigpo", "rollouts_per_task": 2}, rollout__workflow="single_turn", reward="exact"
    )
    with pytest.raises(ConfigError, match="the workflow reported none"):
        strop.train(strop.load(run))
