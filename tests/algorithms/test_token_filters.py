"""Clip_B by hand."""

from __future__ import annotations

import math

import pytest
import torch

from strop.algorithms.token_filters import clip_b

# Four distributions over two tokens: S of each sampled token is p (H + log p).
LIKELY, UNLIKELY = 0.9, 0.1
ENTROPY = -(LIKELY * math.log(LIKELY) + UNLIKELY * math.log(UNLIKELY))
PROBABILITIES = torch.tensor([LIKELY, LIKELY, LIKELY, UNLIKELY])
SIGNALS = [p * (ENTROPY + math.log(p)) for p in (LIKELY, LIKELY, LIKELY, UNLIKELY)]


def kept(advantages: list[float], deviations: float) -> list[bool]:
    entropies = torch.full((4,), ENTROPY)
    return clip_b(PROBABILITIES.log(), entropies, torch.tensor(advantages), deviations=deviations).tolist()


def test_unlikely_tokens_with_a_negative_advantage_are_left_out() -> None:
    """The last token is sqrt(3) standard deviations below the mean of three equal ones and itself."""
    mean = sum(SIGNALS) / 4
    std = math.sqrt(sum((s - mean) ** 2 for s in SIGNALS) / 4)
    assert (mean - SIGNALS[3]) / std == pytest.approx(math.sqrt(3))
    assert kept([-1.0] * 4, 1.7) == [True, True, True, False]
    assert kept([-1.0] * 4, 1.8) == [True] * 4


def test_other_advantages_keep_their_tokens() -> None:
    assert kept([-1.0, -1.0, -1.0, 1.0], 0.1) == [True] * 4
    assert kept([-1.0, -1.0, -1.0, 0.0], 0.1) == [True] * 4


def test_equal_tokens_are_kept() -> None:
    same = torch.full((3,), -0.5)
    assert clip_b(same, torch.ones(3), -torch.ones(3), deviations=0.1).all()
