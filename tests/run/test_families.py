"""Each model family runs the pipeline, and its sampler's log-probs equal the trainer's."""

from __future__ import annotations

import json

import pytest

import strop
from strop.models.tiny import make_model


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma", "phi"])
def test_sampler_and_trainer_agree(family, values, tmp_path):
    folder = make_model(
        tmp_path / family, ["max 1 2"], family=family, vocab_size=300, hidden_size=32, layers=2, heads=4
    )
    run = values(name=family, model={"path": str(folder)}, trainer__duration="2 steps")
    result = strop.train(strop.load(run))
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows[1:]:
        assert 0 <= row["logprob_diff/mean_abs"] < 1e-4
        assert row["grad_norm"] > 0
        assert row["rollouts/error_fraction"] == 0


def test_a_sampler_in_bfloat16_differs_by_rounding(values):
    run = values(name="bf16", model__compute_dtype="bfloat16", trainer__duration="2 steps")
    result = strop.train(strop.load(run))
    assert 1e-6 < result.metrics["logprob_diff/mean_abs"] < 0.1
