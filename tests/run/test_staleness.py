"""Metrics of the age of the weights that sampled a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strop.run.optimize.staleness_metrics import staleness_metrics
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
