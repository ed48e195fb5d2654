"""Log-probs of a run: full KL divergence from both kinds of reference; a sampler without those of its policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from strop.inference.native import NativeEngine

from .results import WEIGHTS, rows_of, train, trained_rows

UNEVALUATED = {"data__eval": [], "evaluate": {}}
REFERENCES = {"a frozen copy": None, "adapters off": {"rank": 4}}


def train_near(values, name, lora, **changes):
    changes |= {"trainer__optimizer__lr": 5e-3, "trainer__epochs_per_step": 2, **UNEVALUATED}
    return trained_rows(values(name=name, model__lora=lora, **changes))[1:]


@pytest.mark.slow
@pytest.mark.parametrize("lora", REFERENCES.values(), ids=REFERENCES)
def test_full_kl_as_a_loss_keeps_the_model_near_the_reference(values, lora):
    algorithm = {"type": "grpo", "rollouts_per_task": 4}
    free, held = (
        train_near(
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
            row["kl_reward/kl"] for row in train_near(values, estimator, lora, algorithm=algorithm)
        ]
    assert found["full"][0] == pytest.approx(0, abs=1e-6)
    assert found["full"][-1] > 0.005
    assert found["k1"] == pytest.approx(found["full"], rel=0.5, abs=0.01)


def test_the_trainer_computes_them_at_the_start_of_the_step(values, monkeypatch: pytest.MonkeyPatch):
    """On-policy, they are the log-probs that the sampler would have reported, except for rounding."""
    short = {
        "algorithm__old_policy": "sampler",
        "trainer__duration": "2 steps",
        "data__eval": [],
        "evaluate": {},
    }
    known = train(values(name="known", **short)).folder
    sample = NativeEngine.sample

    async def without(self, requests):
        return [replace(each, policy_logprobs=None) for each in await sample(self, requests)]

    monkeypatch.setattr(NativeEngine, "sample", without)
    unknown = train(values(name="unknown", **short)).folder
    assert_close(*(load_file(each / "model" / WEIGHTS) for each in (known, unknown)), atol=1e-5, rtol=1e-4)
    assert "logprob_diff/mean_abs" in rows_of(known)[-1]
    assert "logprob_diff/mean_abs" not in rows_of(unknown)[-1]
