"""Metrics of the age of the weights that sampled a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pydantic import TypeAdapter

import strop
from strop.config.schema.algorithm import AlgorithmConfig
from strop.run.entry.train import off_policy_note
from strop.run.optimize.minibatches import staleness_metrics
from tests.buffer.groups import make_group


def test_staleness_of_experiences_and_of_their_tokens():
    (experience,) = make_group("g", version=3, tokens=8, experiences=1).experiences
    assert experience.response_tokens == 4
    mixed = replace(experience, token_versions=np.array([0, 0, 0, 0, 3, 3, 4, 5], dtype=np.int32))
    # Step 6 trains the weights of version 5: ages 2, 2, 1, 0 of the mixed tokens, and 2 of the four others.
    assert staleness_metrics([experience, mixed], 6) == {
        "staleness/mean": 2.0,
        "staleness/max": 2.0,
        "staleness/token_mean": pytest.approx((4 * 2 + 2 + 2 + 1 + 0) / 8),
        "staleness/mixed_fraction": 0.5,
    }


@pytest.mark.parametrize(
    ("style", "algorithm", "is_noted"),
    [
        ({"type": "bounded", "max_staleness": "1 steps"}, {}, True),
        ({"type": "bounded", "max_staleness": "0 steps"}, {}, False),
        ({"type": "fixed", "max_lead": "1 steps"}, {}, True),
        ({"type": "fixed", "every": "2 steps"}, {}, True),
        ("latest", {}, True),
        ("fixed", {}, False),
        ("latest", {"importance_correction": {}}, False),
        ("latest", {"old_policy": "sampler"}, False),
        ("latest", {"type": "sft"}, False),
    ],
)
def test_a_note_warns_of_older_weights_that_nothing_corrects_for(values, style, algorithm, is_noted):
    run = strop.load(values(mode="both", synchronizer={"type": "checkpoint", "style": style})).run
    section = TypeAdapter(AlgorithmConfig).validate_python({"type": "grpo"} | algorithm)
    assert bool(off_policy_note(run.model_copy(update={"algorithm": section}))) == is_noted
