"""Clip_B and Clip_V by hand, and Clip_V against Trinity-RFT's definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.token_filters import clip_b, clip_v

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


def kept_by_v(effects: list[float], advantages: list[float], bound: float, share: float | None) -> list[bool]:
    """Tokens of probability 1 and entropy 0, so that S is 0 and the difference is the expectation."""
    zero = torch.zeros(len(effects))
    expected, signs = torch.tensor(effects), torch.tensor(advantages)
    return clip_v(zero, zero, expected, signs, deviations=bound, max_fraction=share).tolist()


def test_clip_v_compares_with_the_expectation() -> None:
    """Differences 3, 1, 1, 3 of standard deviation 1: those above 2 without a positive advantage are left out."""
    effects, advantages = [3.0, 1.0, 1.0, 3.0], [-1.0, -1.0, 1.0, 1.0]
    assert kept_by_v(effects, advantages, 2.0, None) == [False, True, True, True]
    assert kept_by_v(effects, [0.0, -1.0, 1.0, -1.0], 2.0, None) == [False, True, True, False]
    assert kept_by_v(effects, advantages, 3.5, None) == [True] * 4
    assert kept_by_v([2.0] * 4, [-1.0] * 4, 0.1, None) == [True] * 4


def test_clip_v_leaves_out_the_largest_differences() -> None:
    effects = [5.0, 4.0, 6.0, 0.0]
    assert kept_by_v(effects, [-1.0] * 4, 0.5, 0.25) == [True, True, False, True]
    assert kept_by_v(effects, [-1.0] * 4, 0.5, 1e-4) == [True, True, False, True], "at least one"
    assert kept_by_v(effects, [-1.0] * 4, 0.5, 0.75) == [False, False, False, True]


@given(seed=st.integers(0, 100), share=st.sampled_from([0.02, 0.1, 0.5]))
def test_clip_v_is_that_of_trinity(seed: int, share: float) -> None:
    """trinity 0.6.0 advantage_fn/clipv_advantage.py, token by token."""
    random = torch.Generator().manual_seed(seed)
    count, bound = 50, 0.8
    logprobs, entropies = -torch.rand(2, count, generator=random, dtype=torch.float64) * 2
    entropies, expected = -entropies, torch.randn(count, generator=random, dtype=torch.float64) / 3
    advantages = torch.randint(-1, 2, (count,), generator=random).double()
    p = logprobs.exp()
    difference = expected - p * (entropies + logprobs)
    limit = bound * float(difference.std(correction=0))
    out = [i for i in range(count) if advantages[i] <= 0 and float(difference[i]) > limit]
    punished = sorted((i for i in out if advantages[i] < 0), key=lambda i: -float(difference[i]))
    most = max(int(share * count), 1)
    if len(out) > share * count and len(punished) > most:
        out = [i for i in out if i not in punished[most:]]
    found = clip_v(logprobs, entropies, expected, advantages, deviations=bound, max_fraction=share)
    assert found.tolist() == [i not in out for i in range(count)]
