"""PPO with a critic, from the run file to the checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from strop.errors import ModelError
from strop.models.tiny import make_model
from strop.runs.metrics import metric_of

from .conftest import Values
from .results import checkpoint, train, trained_rows

PPO = {
    "type": "ppo",
    "rollouts_per_task": 2,
    "lam": 0.95,
    "kl_reward": {"coef": 0.01},
    "critic": {"optimizer": {"lr": 3e-3}, "schedule": {"type": "cosine", "warmup": "1 steps"}},
}
UNEVALUATED = {"data__eval": [], "evaluate": {}}


def ppo(**changes: Any) -> dict[str, Any]:
    """The algorithm's section, with other values for the critic."""
    return {**PPO, "critic": {**PPO["critic"], **changes}}  # type: ignore[dict-item]


def test_a_run_records_the_critics_metrics(values: Values) -> None:
    rows = train(values(algorithm=PPO, **UNEVALUATED)).history()
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


def test_rollouts_are_drawn_by_their_rewards(values: Values) -> None:
    drawn = {**PPO, "resampling": {"method": "max_random"}}
    rows, again, other = (
        trained_rows(values(name=name, algorithm=algorithm, trainer__duration="1 steps", **UNEVALUATED))[-1]
        for name, algorithm in (("drawn", drawn), ("again", drawn), ("all", PPO))
    )
    assert rows == again
    assert rows["updates"] == 2 and rows["policy_loss"] != other["policy_loss"]


@pytest.mark.slow
def test_it_learns(values: Values) -> None:
    """The share of digits rises from that of a random model, one in about twenty tokens."""
    run = values(algorithm={**PPO, "critic": {"optimizer": {"lr": 3e-3}}}, evaluate__every="never")
    run["trainer"] |= {"duration": "12 steps", "optimizer": {"type": "adamw", "lr": 1e-2}}
    rows = trained_rows(run)
    first, last = (row["eval/held-out/reward"] for row in (rows[0], rows[-1]))
    assert last > first + 0.3
    assert rows[-1]["reward/mean"] > rows[1]["reward/mean"] + 0.1


def test_the_critic_warm_up_trains_only_the_critic(values: Values) -> None:
    schedule = {"type": "linear", "warmup": "1 steps"}
    rows = trained_rows(values(algorithm=ppo(warmup_steps=2), trainer__schedule=schedule))
    assert [row.get("updates") for row in rows] == [None, 0, 0, 2, 2]
    assert [row.get("lr") for row in rows] == [None, None, None, 0, pytest.approx(1e-3)]
    assert rows[2]["critic/grad_norm"] > 0
    # With the same weights and seeds, greedy answers are the same.
    assert rows[2]["eval/held-out/reward"] == rows[0]["eval/held-out/reward"]


def test_the_critic_has_its_own_number_of_updates(values: Values) -> None:
    """One update a step for the policy, two times two for the critic."""
    algorithm = ppo(tasks_per_update=4, epochs_per_step=2, microbatch="8 sequences")
    run = values(
        algorithm=algorithm, trainer__tasks_per_update=None, trainer__duration="2 steps", **UNEVALUATED
    )
    saved = checkpoint(train(run).folder, 2)
    assert float(load_file(saved / "critic/optimizer.safetensors")["head.bias/step"]) == 8
    state = load_file(saved / "optimizer.safetensors")
    assert {float(value) for name, value in state.items() if name.endswith("/step")} == {2}


def test_the_critic_has_its_own_model(values: Values, tiny: Path, tmp_path: Path) -> None:
    """The critic reads the policy's tokens, so its tokenizer must be the same."""
    other = make_model(tmp_path / "critic", ["other words"], vocab_size=290, hidden_size=16, heads=2)
    short = {"trainer__duration": "1 steps", **UNEVALUATED}
    with pytest.raises(ModelError, match="reads the policy's tokens, but the tokenizer of"):
        trained_rows(values(algorithm=ppo(model={"path": str(other)}), **short))
    own = {"path": str(other), "tokenizer": str(tiny / "model"), "lora": {"rank": 2}}
    assert trained_rows(values(algorithm=ppo(model=own), **short))[-1]["critic/grad_norm"] > 0
