"""Each model family runs the pipeline, and its sampler's log-probs equal the trainer's."""

from __future__ import annotations

import json

import pytest

import strop
from tests.models.families import FAMILIES, family_folder

FAST = ("llama", "mistral", "gemma2", "qwen3_moe", "lfm2")


def check_run(values, folder, **changes):
    run = values(name="family", model={"path": str(folder)}, trainer__duration="2 steps", **changes)
    result = strop.train(strop.load(run))
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        assert 0 <= row["logprob_diff/mean_abs"] < 1e-4
        assert row["grad_norm"] > 0
        assert row["rollouts/error_fraction"] == 0


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in FAST else pytest.mark.faults) for name in FAMILIES]
)
def test_sampler_and_trainer_agree(family, values, tmp_path):
    check_run(values, family_folder(tmp_path, family))


@pytest.mark.faults
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "qwen3_next"])
def test_experts_with_an_adapter(family, values, tmp_path):
    check_run(values, family_folder(tmp_path, family), model__lora={"rank": 4})


def test_a_sampler_in_bfloat16_differs_by_rounding(values):
    run = values(name="bf16", model__compute_dtype="bfloat16", trainer__duration="2 steps")
    result = strop.train(strop.load(run))
    assert 1e-6 < result.metrics["logprob_diff/mean_abs"] < 0.1
