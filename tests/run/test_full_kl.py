"""Runs with the full KL divergence, as a loss and in the reward, with both kinds of reference."""

from __future__ import annotations

import json

import pytest

import strop

REFERENCES = {"a frozen copy": None, "adapters off": {"rank": 4}}


def train(values, name, lora, **changes):
    run = values(
        name=name, model__lora=lora, trainer__optimizer__lr=5e-3, trainer__epochs_per_step=2, **changes
    )
    result = strop.train(strop.load(run))
    return [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()][1:]


@pytest.mark.slow
@pytest.mark.parametrize("lora", REFERENCES.values(), ids=REFERENCES)
def test_full_kl_as_a_loss_keeps_the_model_near_the_reference(values, lora):
    algorithm = {"type": "grpo", "rollouts_per_task": 4}
    free, held = (
        train(
            values,
            f"coef-{coef}",
            lora,
            algorithm=algorithm | {"kl_loss": {"estimator": "full", "coef": coef}},
            trainer__duration="6 steps",
        )
        for coef in (0.0, 5.0)
    )
    assert 0 <= free[0]["kl/ref"] < free[-1]["kl/ref"]
    assert held[-1]["kl/ref"] < free[-1]["kl/ref"] / 2
    assert held[-1]["kl_loss"] == pytest.approx(5 * held[-1]["kl/ref"], rel=1e-5)
    assert all(row["kl_loss"] == 0 for row in free)


@pytest.mark.slow
@pytest.mark.parametrize("lora", REFERENCES.values(), ids=REFERENCES)
def test_full_kl_in_the_reward_equals_the_k1_estimate(values, lora):
    """Both are computed at the start of a step; over a step's tokens k1 has the same mean up to noise."""
    found = {}
    for estimator in ("full", "k1"):
        penalty = {"estimator": estimator, "coef": 0.0}
        algorithm = {"type": "reinforce_plus_plus", "rollouts_per_task": 16, "kl_reward": penalty}
        found[estimator] = [
            row["kl_reward/kl"] for row in train(values, estimator, lora, algorithm=algorithm)
        ]
    assert found["full"][0] == pytest.approx(0, abs=1e-6)
    assert found["full"][-1] > 0.01
    assert found["k1"] == pytest.approx(found["full"], rel=0.5, abs=0.01)
