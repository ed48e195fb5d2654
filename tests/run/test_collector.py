"""Dynamic sampling replaces groups without reward variance; greedy rollouts are baselines only."""

import json

import pyarrow.parquet as pq
import pytest

import strop
from strop.errors import RewardError


def rows_of(result):
    return [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]


def test_dynamic_sampling_replaces_groups_without_variance(values):
    run = values(algorithm={"type": "grpo", "rollouts_per_task": 4, "dynamic_sampling": {"max_tries": 5}})
    run["record"]["rollouts_every"] = "1 steps"
    run["evaluate"] = {"at_start": False}
    result = strop.train(strop.load(run))
    for row in rows_of(result):
        step = int(row["step"])
        sampled = pq.read_table(result.folder / "rollouts" / f"step-{step:06d}.parquet").to_pylist()
        rewards: dict[str, list[float]] = {}
        for rollout in sampled:
            rewards.setdefault(rollout["group"], []).append(rollout["reward"])
        assert all(len(group) == 4 for group in rewards.values()), "groups of different tries are separate"
        dull = sum(len(set(group)) == 1 for group in rewards.values())
        assert row["groups/filtered"] == dull
        assert len(rewards) - dull <= 8
        assert row["rollouts/count"] == 4 * len(rewards)


def test_tries_are_limited_and_a_step_without_variance_makes_no_update(values):
    run = values(algorithm={"type": "grpo", "rollouts_per_task": 4, "dynamic_sampling": {"max_tries": 2}})
    run["reward"] = run["reward"].replace("digit_share", "constant")
    result = strop.train(strop.load(run))
    for row in rows_of(result)[1:]:
        assert row["groups/filtered"] == 16, "two tries of eight tasks"
        assert "grad_norm" not in row


def test_dynamic_sampling_by_a_reward_component(values):
    sampling = {"max_tries": 1, "metric": "with_parts/even"}
    run = values(algorithm={"type": "grpo", "rollouts_per_task": 4, "dynamic_sampling": sampling})
    run["reward"] = run["reward"].replace("digit_share", "with_parts")
    run["record"]["rollouts_every"], run["trainer"]["duration"] = "1 steps", "1 steps"
    result = strop.train(strop.load(run))
    parts: dict[str, set[float]] = {}
    for row in pq.read_table(result.folder / "rollouts" / "step-000001.parquet").to_pylist():
        parts.setdefault(row["group"], set()).add(dict(row["reward_parts"])["with_parts/even"])
    assert rows_of(result)[-1]["groups/filtered"] == sum(len(each) == 1 for each in parts.values())
    run["algorithm"]["dynamic_sampling"]["metric"] = "even"
    run["name"] = "other"
    with pytest.raises(RewardError, match=r"has no component 'even'; it has with_parts, with_parts/even"):
        strop.train(strop.load(run))


def test_greedy_baseline_is_not_among_the_rollouts(values):
    run = values(algorithm={"type": "remax", "rollouts_per_task": 2})
    run["record"]["rollouts_every"] = "1 steps"
    result = strop.train(strop.load(run))
    assert [row["rollouts/count"] for row in rows_of(result)[1:]] == [16] * 4
    names = pq.read_table(result.folder / "rollouts" / "step-000001.parquet")["group"].to_pylist()
    assert all(name.startswith("train-") for name in names)
