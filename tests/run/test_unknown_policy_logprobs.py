"""A run whose inference engine does not compute the policy's log-probs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import strop
from strop.inference.native import NativeEngine

from .test_distributed import rows_of


def test_the_trainer_computes_them_at_the_start_of_the_step(values, monkeypatch: pytest.MonkeyPatch):
    """On-policy, they are the log-probs that the sampler would have reported, except for rounding."""
    known = strop.train(strop.load(values(name="known", algorithm__old_policy="sampler")))
    sample = NativeEngine.sample

    async def without(self, requests):
        return [replace(each, policy_logprobs=None) for each in await sample(self, requests)]

    monkeypatch.setattr(NativeEngine, "sample", without)
    unknown = strop.train(strop.load(values(name="unknown", algorithm__old_policy="sampler")))
    weights = [load_file(each.folder / "model" / "model.safetensors") for each in (known, unknown)]
    assert_close(*weights, atol=1e-5, rtol=1e-4)
    assert "logprob_diff/mean_abs" in rows_of(known.folder)[-1]
    assert "logprob_diff/mean_abs" not in rows_of(unknown.folder)[-1]
