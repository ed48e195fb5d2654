"""`strop.Policy` with engines in processes of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import strop
from strop.models.tiny import make_model
from tests.inference.helpers import NEEDS_SGLANG, NEEDS_VLLM

ENGINES = [
    pytest.param(strop.VllmEngine(), marks=NEEDS_VLLM, id="vllm"),
    pytest.param(strop.SglangEngine(), marks=NEEDS_SGLANG, id="sglang"),
]


@pytest.mark.engines
@pytest.mark.parametrize("engine", ENGINES)
def test_the_four_verbs_with_an_engine(engine: strop.VllmEngine | strop.SglangEngine, tmp_path: Path) -> None:
    """After a step the engine samples from the new weights: its log-probs are the trainer's."""
    model = make_model(tmp_path / "tiny", ["1+1 is two"], vocab_size=300, hidden_size=64, heads=2)
    with strop.Policy(model, engine=engine, max_sequence_tokens=128) as policy:
        for step in range(2):
            groups = policy.sample(["1+1=", "2+1="], n=2, max_tokens=4, seed=5)
            assert {version for each in groups[0].rollouts for version in each.versions} == {step}
            batch = strop.make_batch(groups, [[1.0, -1.0]] * 2)
            for found, experience in zip(policy.logprobs(batch), batch.experiences, strict=True):
                mask = experience.loss_mask
                np.testing.assert_allclose(found[mask], experience.sampler_logprobs[mask], atol=1e-2)
            policy.forward_backward(batch)
            policy.step(lr=1e-2)
