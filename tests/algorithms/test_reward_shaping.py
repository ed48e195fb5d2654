"""DAPO's soft overlong punishment."""

from __future__ import annotations

import pytest
import torch

from strop.algorithms.reward_shaping import overlong_penalty


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # A limit of 100 with a buffer of 20: free up to 80, and -factor at 100.
        (1, 0.0),
        (80, 0.0),
        (81, -0.05),
        (90, -0.5),
        (100, -1.0),
        (250, -1.0),  # several turns
    ],
)
def test_by_hand(tokens: int, expected: float) -> None:
    def penalty(factor: float) -> float:
        lengths = torch.tensor([tokens])
        return overlong_penalty(lengths, max_response_tokens=100, buffer_tokens=20, factor=factor).item()

    assert penalty(1.0) == pytest.approx(expected)
    assert penalty(0.5) == pytest.approx(expected / 2)
