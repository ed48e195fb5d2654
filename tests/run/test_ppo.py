"""PPO with a critic, from the run file to the checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import strop
from strop.errors import CheckpointError, ConfigError, ModelError, TrainingError
from strop.models.tiny import make_model
from strop.runs.metrics import metric_of

Values = Callable[..., dict[str, Any]]
PPO = {
    "type": "ppo",
    "rollouts_per_task": 2,
    "lam": 0.95,
    "kl_reward": {"coef": 0.01},
    "critic": {
        "optimizer": {"lr": 3e-3},
        "schedule": {"type": "cosine", "warmup": "1 steps"},
    },
}


def ppo(**changes: Any) -> dict[str, Any]:
    """The algorithm's section, with other values for the critic."""
    return {**PPO, "critic": {**PPO["critic"], **changes}}  # type: ignore[dict-item]


def train(values: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the run's metrics."""
    strop.train(strop.load(values))
    return [json.loads(line) for line in (folder_of(values) / "metrics.jsonl").read_text().splitlines()]


def learned(row: dict[str, Any]) -> dict[str, Any]:
    clocks = ("time/", "tokens_per_second", "engine/", "memory/")
    return {name: value for name, value in row.items() if not name.startswith(clocks)}


def folder_of(values: dict[str, Any]) -> Path:
    return Path(values["output"]) / "strop" / values["name"]


def test_a_run_records_the_critics_metrics(values: Values) -> None:
    rows = train(values(algorithm=PPO))
    assert len(rows) == 5
    for row in rows[1:]:
        for name in row:
            metric_of(name)
        assert row["updates"] == 2
        assert math.isfinite(row["critic/explained_variance"]) and row["critic/grad_norm"] > 0
        assert row["time/critic_seconds"] > 0
    assert rows[1]["critic/values"] == 0  # a fresh head says nothing
    assert rows[1]["critic/lr"] == 0 and rows[2]["critic/lr"] == pytest.approx(3e-3)
    assert rows[3]["critic/values"] != 0


@pytest.mark.slow
def test_rollouts_are_drawn_by_their_rewards(values: Values) -> None:
    rows = train(values(algorithm={**PPO, "resampling": {"method": "max_random"}}))
    again = train(values(name="again", algorithm={**PPO, "resampling": {"method": "max_random"}}))
    other = train(values(name="other", algorithm=PPO))
    assert [learned(row) for row in rows] == [learned(row) for row in again]
    assert rows[1]["updates"] == 2 and rows[1]["policy_loss"] != other[1]["policy_loss"]


@pytest.mark.slow
def test_it_learns(values: Values) -> None:
    """The share of digits rises from that of a random model, one in about twenty tokens."""
    run = values(algorithm={**PPO, "critic": {"optimizer": {"lr": 3e-3}}})
    run["trainer"] |= {"duration": "12 steps", "optimizer": {"type": "adamw", "lr": 1e-2}}
    run["evaluate"]["every"] = "never"
    rows = train(run)
    first, last = (row["eval/held-out/reward"] for row in (rows[0], rows[-1]))
    assert last > first + 0.3
    assert rows[-1]["reward/mean"] > rows[1]["reward/mean"] + 0.1


def test_the_critic_warm_up_trains_only_the_critic(values: Values) -> None:
    schedule = {"type": "linear", "warmup": "1 steps"}
    rows = train(values(algorithm=ppo(warmup_steps=2), trainer__schedule=schedule))
    assert [row.get("updates") for row in rows] == [None, 0, 0, 2, 2]
    assert [row.get("lr") for row in rows] == [None, None, None, 0, pytest.approx(1e-3)]
    assert rows[2]["critic/grad_norm"] > 0
    # With the same weights and seeds, greedy answers are the same.
    assert rows[2]["eval/held-out/reward"] == rows[0]["eval/held-out/reward"]


def test_a_critic_warm_up_without_policy_steps_is_refused(values: Values) -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps \(4\) leaves none of the 4 steps"):
        train(values(algorithm=ppo(warmup_steps=4)))


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 4, "dropout": 0.1}], ids=["full", "lora"])
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(values: Values, lora: Any) -> None:
    run = values(algorithm=PPO, name="whole", model__lora=lora, trainer__epochs_per_step=2)
    expected = train(run)
    half = {**run, "name": "half", "resume": str(folder_of(run) / "checkpoints/step-000002")}
    resumed = train(half)
    assert [learned(row) for row in resumed] == [learned(row) for row in expected[3:]]
    for part in ("weights", "critic/weights", "critic/optimizer"):
        one, other = (
            load_file(folder_of(r) / f"checkpoints/step-000004/{part}.safetensors") for r in (run, half)
        )
        assert one.keys() == other.keys() and all(bool((one[name] == other[name]).all()) for name in one)


@pytest.mark.slow
def test_the_critic_has_its_own_number_of_updates(values: Values) -> None:
    """One update a step for the policy, two times two for the critic."""
    run = values(algorithm=ppo(tasks_per_update=4, epochs_per_step=2, microbatch="8 sequences"))
    run["trainer"]["tasks_per_update"] = None
    train(run)
    state = load_file(folder_of(run) / "checkpoints/step-000004/critic/optimizer.safetensors")
    assert float(state["head.bias/step"]) == 16
    state = load_file(folder_of(run) / "checkpoints/step-000004/optimizer.safetensors")
    assert {float(value) for name, value in state.items() if name.endswith("/step")} == {4}


@pytest.mark.slow
def test_the_critic_has_its_own_model(values: Values, tiny: Path, tmp_path: Path) -> None:
    """The critic reads the policy's tokens, so its tokenizer must be the same."""
    other = make_model(tmp_path / "critic", ["other words"], vocab_size=290, hidden_size=16, heads=2)
    with pytest.raises(ModelError, match="reads the policy's tokens, but the tokenizer of"):
        train(values(algorithm=ppo(model={"path": str(other)})))
    own = {"path": str(other), "tokenizer": str(tiny / "model"), "lora": {"rank": 2}}
    assert train(values(algorithm=ppo(model=own)))[-1]["critic/grad_norm"] > 0


def test_a_diverging_critic_stops_the_run(values: Values) -> None:
    wild = ppo(optimizer={"lr": 1e30}, schedule="constant", max_grad_norm=None)
    with pytest.raises(TrainingError, match=r"algorithm\.critic\.optimizer\.lr"):
        train(values(algorithm=wild))


def test_a_checkpoint_without_a_critic_is_refused(values: Values, tmp_path: Path) -> None:
    run = values(name="without")
    train(run)
    there = folder_of(run) / "checkpoints" / "step-000004"
    with pytest.raises(CheckpointError, match=r"critic/weights\.safetensors"):
        train(values(algorithm=PPO, name="with", resume=str(there)))


def test_only_ppo_has_a_critic(values: Values) -> None:
    run = values()
    run["algorithm"]["critic"] = {}
    with pytest.raises(ConfigError, match="critic"):
        train(run)
