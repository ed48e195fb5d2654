"""Policy losses: by hand, and against the papers' formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.losses.aggregation import TargetTokens, token_weights
from strop.algorithms.losses.loss_terms import PolicyLossTerms
from strop.algorithms.losses.policy_losses import cispo, log_ratio, policy_loss_terms, ppo_clip, reinforce
from strop.config.schema.policy_loss import ClippedLossConfig, GspoLossConfig, OpmdLossConfig
from tests.algorithms.batches import counts_of, make_batch

CONFIG = ClippedLossConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0)


def by_config(ratio: torch.Tensor, advantages: torch.Tensor, config: ClippedLossConfig) -> PolicyLossTerms:
    return ppo_clip(ratio, advantages, low=config.clip_low, high=config.clip_high, dual=config.dual_clip)


def run(ratio: float, advantage: float, config: ClippedLossConfig = CONFIG) -> tuple[float, float, str]:
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


def test_without_dual_clip_a_negative_advantage_is_not_bounded() -> None:
    loss, gradient, bound = run(4.0, -2.0, ClippedLossConfig(dual_clip=None))
    assert (loss, gradient, bound) == (pytest.approx(8.0), pytest.approx(8.0), "")


@given(st.floats(0.01, 20), st.floats(-5, 5), st.floats(0, 0.9), st.floats(0, 0.9), st.floats(1.01, 10))
def test_losses_match_the_papers_formulas(
    ratio: float, advantage: float, low: float, high: float, dual: float
) -> None:
    surrogate = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    if advantage < 0:
        surrogate = max(surrogate, dual * advantage)
    found = run(ratio, advantage, ClippedLossConfig(clip_low=low, clip_high=high, dual_clip=dual))
    assert found[0] == pytest.approx(-surrogate, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("config", [CONFIG, ClippedLossConfig(clip_low=0, clip_high=0)])
def test_on_policy_the_gradient_is_reinforce(config: ClippedLossConfig) -> None:
    """With no old log-probs the ratio is 1 and the loss's gradient -A grad log pi, however tight the clip."""
    logprob = torch.tensor([-3.0, -0.5], requires_grad=True)
    advantages = torch.tensor([2.0, -1.5])
    ratio = log_ratio(logprob, None)
    assert ratio.tolist() == [0, 0]
    (gradient,) = torch.autograd.grad(by_config(ratio, advantages, config).loss.sum(), logprob)
    torch.testing.assert_close(gradient, -advantages)


def test_gspo_by_hand() -> None:
    """One answer of two tokens, with ratios 2 and 1/8: their geometric mean is (2 / 8)^(1/2) = 1/2."""
    targets = TargetTokens.of(make_batch([(1, 2)]))
    logprobs = torch.tensor([2.0, 1 / 8]).log().requires_grad_()
    ratio = log_ratio(logprobs, torch.zeros(2))

    def run(advantage: float) -> tuple[PolicyLossTerms, list[float]]:
        config = GspoLossConfig(clip_low=0.25, clip_high=0.25)
        terms = policy_loss_terms(config, logprobs, ratio, torch.full((2,), advantage), targets)
        return terms, torch.autograd.grad(terms.loss.sum(), logprobs, retain_graph=True)[0].tolist()

    # A good answer is pulled back with the answer's ratio, on each token: -A / 2.
    terms, gradient = run(3.0)
    assert terms.loss.tolist() == pytest.approx([-1.5, -1.5])
    assert gradient == pytest.approx([-1.5, -1.5])
    # A bad one is already unlikelier than 3/4: no gradient, although its first token is likelier.
    terms, gradient = run(-3.0)
    assert terms.loss.tolist() == pytest.approx([2.25, 2.25])
    assert gradient == [0, 0]
    assert terms.clipped_low.tolist() == [True, True]


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.floats(0, 0.3),
    st.floats(0, 0.3),
    st.integers(0, 99),
)
def test_gspo_is_the_sequence_level_objective(lengths: list[int], low: float, high: float, seed: int) -> None:
    """Value and gradient of mean over answers of min(s A, clip(s) A), s = exp(mean of log ratios)."""
    batch = make_batch([(1, n) for n in lengths], seed=seed)
    batch.weight.fill_(1)
    targets, counts = TargetTokens.of(batch), counts_of(batch)
    generator = torch.Generator().manual_seed(seed)
    ratio = (torch.randn(sum(lengths), generator=generator) * 0.3).requires_grad_()
    per_answer = torch.randn(len(lengths), generator=generator)
    advantages = per_answer.repeat_interleave(torch.tensor(lengths))

    means = torch.stack([part.mean() for part in ratio.split(lengths)]).exp()
    expected = -torch.minimum(means * per_answer, means.clamp(1 - low, 1 + high) * per_answer).mean()
    weights = token_weights(targets, "seq-mean-token-mean", counts, max_response_tokens=9)
    terms = policy_loss_terms(GspoLossConfig(clip_low=low, clip_high=high), ratio, ratio, advantages, targets)
    found = (weights * terms.loss).sum()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, ratio), torch.autograd.grad(expected, ratio))


@pytest.mark.parametrize(
    ("ratio", "low", "weight", "bound"),
    [
        (1.1, None, 1.1, ""),
        (3.0, None, 1.28, "high"),
        (0.1, None, 0.1, ""),  # no lower bound in the paper
        (0.1, 0.2, 0.8, "low"),
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_cispo_by_hand(ratio: float, low: float | None, weight: float, bound: str, advantage: float) -> None:
    """Old log-prob -1: the loss is -A w log pi, and its gradient -A w, bound or not."""
    logprob = torch.tensor([math.log(ratio) - 1], requires_grad=True)
    ratios = log_ratio(logprob, torch.tensor([-1.0]))
    terms = cispo(logprob, ratios, torch.tensor([advantage]), low=low, high=0.28)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logprob)
    assert terms.loss.item() == pytest.approx(-advantage * weight * (math.log(ratio) - 1), rel=1e-5)
    assert gradient.item() == pytest.approx(-advantage * weight, rel=1e-5)
    bounds = {"low": terms.clipped_low, "high": terms.clipped_high, "dual": terms.clipped_dual}
    assert " ".join(k for k, v in bounds.items() if v.item()) == bound


def test_the_plain_policy_gradient_by_hand() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss = reinforce(logprobs, torch.tensor([3.0, -0.5])).loss
    assert loss.tolist() == [3.0, -1.0]
    assert torch.autograd.grad(loss.sum(), logprobs)[0].tolist() == [-3.0, 0.5]


def test_opmd_is_the_plain_policy_gradient_over_one_plus_tau() -> None:
    logprobs = torch.tensor([-1.0, -2.0])
    targets = TargetTokens.of(make_batch([(1, 2)]))
    config = OpmdLossConfig(tau=3.0)
    loss = policy_loss_terms(config, logprobs, logprobs, torch.tensor([3.0, -0.5]), targets).loss
    assert loss.tolist() == [0.75, -0.25]
