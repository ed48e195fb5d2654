"""PRIME with a process reward model, from the run file to the checkpoint; and the choice of groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import strop
from strop.config.schema.process_reward import OversamplingConfig
from strop.errors import ConfigError, RewardError
from strop.run.rollout.collector import prefer_groups
from strop.types import Experience, ExperienceGroup
from tests.models.models import experience

Values = Callable[..., dict[str, Any]]
PRIME = {
    "type": "prime",
    "rollouts_per_task": 2,
    "process_reward": {"optimizer": {"lr": 1e-3}, "schedule": {"type": "cosine", "warmup": "1 steps"}},
    "oversampling": {"factor": 2, "min_mean_reward": 0.1, "max_mean_reward": 0.9},
}


def train(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the run's metrics, without those that depend on time."""
    strop.train(strop.load(values))
    lines = (folder_of(values) / "metrics.jsonl").read_text().splitlines()
    clocks = ("time/", "tokens_per_second", "engine/", "memory/")
    return [{n: v for n, v in json.loads(line).items() if not n.startswith(clocks)} for line in lines]


def folder_of(values: dict[str, Any]) -> Path:
    return Path(values["output"]) / "strop" / values["name"]


@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(values: Values) -> None:
    run = values(algorithm=PRIME, name="whole")
    expected = train(run)
    for row in expected[1:]:
        assert row["rollouts/count"] == 2 * 2 * 8 and row["groups/filtered"] == 8
        assert row["process_reward/grad_norm"] > 0 and row["updates"] == 2
    half = {**run, "name": "half", "resume": str(folder_of(run) / "checkpoints/step-000002")}
    assert train(half) == expected[3:]
    for part in ("weights", "process_reward/weights", "process_reward/optimizer"):
        one, other = (
            load_file(folder_of(r) / f"checkpoints/step-000004/{part}.safetensors") for r in (run, half)
        )
        assert one.keys() == other.keys() and all(bool((one[name] == other[name]).all()) for name in one)


def test_an_epoch_has_fewer_steps(values: Values) -> None:
    """100 tasks, 8 times 2 of them in a step."""
    run = values(algorithm=PRIME, trainer__duration="1 epochs", trainer__stop_after="1 steps")
    run["trainer"]["schedule"] = {"type": "constant"}
    assert strop.load(run).run.tasks_sampled_per_step == 16
    assert train(run)[-1]["epoch"] == pytest.approx(16 / 100, abs=0.02)


def test_a_reward_must_be_a_probability(values: Values) -> None:
    run = values(algorithm=PRIME)
    run["reward"] = {"functions": [{"function": run["reward"], "weight": 100.0}]}
    with pytest.raises(RewardError, match="reads the reward as the probability"):
        train(run)


def test_ranks_have_no_second_language_model(values: Values) -> None:
    with pytest.raises(ConfigError, match=r"only one process can; write trainer\.engine: local"):
        strop.load(values(algorithm=PRIME, trainer__engine={"type": "fsdp2", "ranks": 2}))


def group(name: str, rewards: list[float], status: str = "ok") -> ExperienceGroup:
    rows: list[Experience] = [
        replace(experience([1], [2], group=name, index=index, reward=reward), status=status)
        for index, reward in enumerate(rewards)
    ]
    return ExperienceGroup(name, rows)


def test_groups_of_medium_mean_reward_come_first() -> None:
    groups = [
        group("hard", [0.0, 0.0]),
        group("cut", [0.0, 1.0], "truncated"),
        group("medium", [0.0, 1.0]),
        group("bound", [0.2, 0.2]),
        group("easy", [1.0, 1.0]),
    ]
    chosen = [each.id for each in prefer_groups(groups, OversamplingConfig())]
    assert chosen == ["medium", "bound", "hard", "cut", "easy"]
    with_cut = OversamplingConfig(prefer_complete=False)
    assert [each.id for each in prefer_groups(groups, with_cut)][:2] == ["cut", "medium"]
    assert prefer_groups(groups, None) is groups
