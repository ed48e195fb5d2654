"""Tasks and groups of a step: mixtures, dynamic sampling, oversampling, and greedy rollouts as baselines."""

from __future__ import annotations

from dataclasses import replace

import pyarrow.parquet as pq
import pytest

import strop
from strop.config.schema.policy_gradient import OversamplingConfig
from strop.run.rollout.collector import prefer_groups
from strop.types import Experience, ExperienceGroup
from tests.models.models import experience

from .conftest import Values, write_rows
from .results import rows_of, train, trained_rows


@pytest.fixture
def sampling(values):
    """A run without evaluations that records the rollouts of each step: its rows, and its table of a step."""

    def run(reward="digit_share", steps=2, **algorithm):
        found = values(record__rollouts_every="1 steps", data__eval=[], evaluate={}, algorithm=algorithm)
        found["reward"] = found["reward"].replace("digit_share", reward)
        folder = train(found, f"trainer.duration={steps} steps").folder
        tables = [pq.read_table(file).to_pylist() for file in sorted((folder / "rollouts").iterdir())]
        return rows_of(folder)[1:], tables

    return run


def test_dynamic_sampling_replaces_groups_without_variance(sampling):
    rows, tables = sampling(type="grpo", rollouts_per_task=4, dynamic_sampling={"max_tries": 5})
    for row, sampled in zip(rows, tables, strict=True):
        rewards: dict[str, list[float]] = {}
        for rollout in sampled:
            rewards.setdefault(rollout["group"], []).append(rollout["reward"])
        assert all(len(group) == 4 for group in rewards.values()), "groups of different tries are separate"
        dull = sum(len(set(group)) == 1 for group in rewards.values())
        assert row["groups/filtered"] == dull
        assert len(rewards) - dull <= 8
        assert row["rollouts/count"] == 4 * len(rewards)


def test_tries_are_limited_and_a_step_without_variance_makes_no_update(sampling):
    rows, _ = sampling("constant", type="grpo", rollouts_per_task=4, dynamic_sampling={"max_tries": 2})
    for row in rows:
        assert row["groups/filtered"] == 16, "two tries of eight tasks"
        assert "grad_norm" not in row


def test_dynamic_sampling_by_a_reward_component(sampling):
    by_part = {"max_tries": 1, "metric": "with_parts/even"}
    (row,), (table,) = sampling("with_parts", 1, type="grpo", rollouts_per_task=4, dynamic_sampling=by_part)
    parts: dict[str, set[float]] = {}
    for rollout in table:
        parts.setdefault(rollout["group"], set()).add(dict(rollout["reward_parts"])["with_parts/even"])
    assert row["groups/filtered"] == sum(len(each) == 1 for each in parts.values())


def test_greedy_baseline_is_not_among_the_rollouts(sampling):
    rows, (table, _) = sampling(type="remax", rollouts_per_task=2)
    assert [row["rollouts/count"] for row in rows] == [16] * 2
    assert all(rollout["group"].startswith("train-") for rollout in table)


def test_a_mixture_draws_by_weight(values, tiny, tmp_path):
    first = {"path": str(tiny / "tasks.jsonl"), "weight": 1}
    first["few_shot"] = {"path": str(tiny / "tasks.jsonl"), "count": 1}
    rows = [{"question": f"min {a} {b}", "smaller": str(min(a, b))} for a in range(4) for b in range(4)]
    path = str(write_rows(tmp_path / "minimum.jsonl", rows))
    second = {"path": path, "prompt": "question", "answer": "smaller", "weight": 3}
    run = values(data__train=[first, second], data__eval=[], evaluate={}, trainer__tasks_per_step=32)
    run["algorithm"]["rollouts_per_task"] = 2
    folder = train(run, "trainer.duration=1 steps", "record.rollouts_every=1 steps").folder
    groups = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    drawn = [row["task_id"].partition(":")[0] for row in groups]
    assert {"train", "mixture.0"} == set(drawn)
    assert drawn.count("mixture.0") > 2 * drawn.count("train")


def test_an_epoch_with_oversampling_has_fewer_steps(values: Values) -> None:
    """100 tasks, 8 times 2 of them in a step."""
    algorithm = {"type": "prime", "rollouts_per_task": 2, "oversampling": {"factor": 2}}
    run = values(algorithm=algorithm, data__eval=[], evaluate={})
    run["trainer"] |= {"duration": "1 epochs", "stop_after": "1 steps"}
    assert strop.load(run).run.tasks_sampled_per_step == 16
    assert trained_rows(run)[-1]["epoch"] == pytest.approx(16 / 100, abs=0.02)


def rewarded(name: str, rewards: list[float], status: str = "ok") -> ExperienceGroup:
    rows: list[Experience] = [
        replace(experience([1], [2], group=name, index=index, reward=reward), status=status)
        for index, reward in enumerate(rewards)
    ]
    return ExperienceGroup(name, rows)


def test_groups_of_medium_mean_reward_come_first() -> None:
    groups = [
        rewarded("hard", [0.0, 0.0]),
        rewarded("cut", [0.0, 1.0], "truncated"),
        rewarded("medium", [0.0, 1.0]),
        rewarded("bound", [0.2, 0.2]),
        rewarded("easy", [1.0, 1.0]),
    ]
    chosen = [each.id for each in prefer_groups(groups, OversamplingConfig())]
    assert chosen == ["medium", "bound", "hard", "cut", "easy"]
    with_cut = OversamplingConfig(prefer_complete=False)
    assert [each.id for each in prefer_groups(groups, with_cut)][:2] == ["cut", "medium"]
    assert prefer_groups(groups, None) is groups
