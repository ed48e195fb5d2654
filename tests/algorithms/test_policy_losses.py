"""The clipped surrogate, case by case."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.policy_losses import PolicyTerms, clipped, log_ratio
from strop.config.schema.algorithm import ClippedLoss

CONFIG = ClippedLoss(clip_low=0.2, clip_high=0.28, dual_clip=3.0)


def by_config(ratio: torch.Tensor, advantages: torch.Tensor, config: ClippedLoss) -> PolicyTerms:
    return clipped(ratio, advantages, low=config.clip_low, high=config.clip_high, dual=config.dual_clip)


def run(ratio: float, advantage: float, config: ClippedLoss = CONFIG) -> tuple[float, float, str]:
    """Loss, its gradient in the log-prob, and which bound was in force."""
    logprob = torch.tensor([math.log(ratio)], requires_grad=True)
    terms = by_config(log_ratio(logprob, torch.zeros(1)), torch.tensor([advantage]), config)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logprob)
    bounds = {"low": terms.clipped_low, "high": terms.clipped_high, "dual": terms.clipped_dual}
    return terms.loss.item(), gradient.item(), " ".join(k for k, v in bounds.items() if v.item())


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "bound"),
    [
        # Inside the bounds: loss -A * ratio; its derivative in log ratio is the same.
        (1.1, 2.0, -2.2, -2.2, ""),
        (1.1, -2.0, 2.2, 2.2, ""),
        # A good answer, already likelier by more than 1.28: counts as 1.28, no more pull.
        (1.5, 2.0, -2.56, 0.0, "high"),
        # A good answer that became unlikely is pulled back with its own ratio.
        (0.5, 2.0, -1.0, -1.0, ""),
        # A bad answer, already unlikelier than 0.8: counts as 0.8, no more push.
        (0.5, -2.0, 1.6, 0.0, "low"),
        # A bad answer that became likelier is pushed with its own ratio, up to the dual clip.
        (2.0, -2.0, 4.0, 4.0, ""),
        (4.0, -2.0, 6.0, 0.0, "dual"),
        (4.0, 0.0, 0.0, 0.0, ""),
    ],
)
def test_by_hand(ratio: float, advantage: float, loss: float, gradient: float, bound: str) -> None:
    found = run(ratio, advantage)
    assert found[0] == pytest.approx(loss, rel=1e-6)
    assert found[1] == pytest.approx(gradient, rel=1e-6)
    assert found[2] == bound


def test_without_a_dual_clip_nothing_bounds_a_bad_answer() -> None:
    loss, gradient, bound = run(4.0, -2.0, ClippedLoss(dual_clip=None))
    assert (loss, gradient, bound) == (pytest.approx(8.0), pytest.approx(8.0), "")


@given(st.floats(0.01, 20), st.floats(-5, 5), st.floats(0, 0.9), st.floats(0, 0.9), st.floats(1.01, 10))
def test_equals_the_papers_written_out(
    ratio: float, advantage: float, low: float, high: float, dual: float
) -> None:
    surrogate = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if advantage < 0:
        surrogate = max(surrogate, dual * advantage)
    found = run(ratio, advantage, ClippedLoss(clip_low=low, clip_high=high, dual_clip=dual))
    assert found[0] == pytest.approx(-surrogate, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("config", [CONFIG, ClippedLoss(clip_low=0, clip_high=0)])
def test_on_policy_the_gradient_is_reinforce(config: ClippedLoss) -> None:
    """With no old log-probs the ratio is 1 and the loss's gradient -A grad log pi, however tight the clip."""
    logprob = torch.tensor([-3.0, -0.5], requires_grad=True)
    advantages = torch.tensor([2.0, -1.5])
    ratio = log_ratio(logprob, None)
    assert ratio.tolist() == [0, 0]
    (gradient,) = torch.autograd.grad(by_config(ratio, advantages, config).loss.sum(), logprob)
    torch.testing.assert_close(gradient, -advantages)
