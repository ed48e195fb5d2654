"""GMPO, SAPO, DPPO, DRO and plain importance sampling: by hand, and gradients against the papers' formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from strop.algorithms.losses.aggregation import TargetTokens, token_weights
from strop.algorithms.losses.loss_terms import PolicyLossTerms
from strop.algorithms.losses.policy_losses import log_ratio, policy_loss_terms
from strop.config.schema.policy_loss import (
    DppoKlLossConfig,
    DppoTvLossConfig,
    DroLossConfig,
    GmpoLossConfig,
    ImportanceSamplingLossConfig,
    PolicyLossConfig,
    SapoLossConfig,
)
from tests.algorithms.batches import counts_of, make_batch


def on_one_response(
    config: PolicyLossConfig, new: list[float], old: list[float], advantages: list[float]
) -> tuple[PolicyLossTerms, list[float]]:
    """Terms, and the gradient in each log-prob of their sum, from probabilities of the tokens of one response."""
    targets = TargetTokens.of(make_batch([(1, len(new))]))
    logprobs = torch.tensor(new).log().requires_grad_()
    ratio = log_ratio(logprobs, torch.tensor(old).log())
    terms = policy_loss_terms(config, logprobs, ratio, torch.tensor(advantages), targets)
    return terms, torch.autograd.grad(terms.loss.sum(), logprobs)[0].tolist()


def test_gmpo_by_hand() -> None:
    """Ratios 4 and 1/4. At A > 0 the first counts as 2: the mean is (2 / 4)^(1/2)."""
    config = GmpoLossConfig(clip_low=math.log(2), clip_high=math.log(2))
    new, old = [0.8, 0.1], [0.2, 0.4]
    terms, gradient = on_one_response(config, new, old, [3.0, 3.0])
    whole = math.sqrt(0.5)
    assert terms.loss.tolist() == pytest.approx([-3 * whole] * 2)
    assert gradient == pytest.approx([0, -3 * whole])
    assert (terms.clipped_high.tolist(), terms.clipped_low.tolist()) == ([True, False], [False, False])
    # At A < 0 the second counts as 1/2, and the mean is (4 / 2)^(1/2).
    terms, gradient = on_one_response(config, new, old, [-1.0, -1.0])
    assert terms.loss.tolist() == pytest.approx([math.sqrt(2)] * 2)
    assert gradient == pytest.approx([math.sqrt(2), 0])
    assert (terms.clipped_high.tolist(), terms.clipped_low.tolist()) == ([False, False], [False, True])


@pytest.mark.parametrize("seed", range(3))
def test_gmpo_has_value_and_gradient_of_the_papers_objective(seed: int) -> None:
    """-mean over responses of A * geometric mean, under the aggregation seq-mean-token-mean."""
    lengths = [4, 1, 6]
    batch = make_batch([(2, length) for length in lengths])
    batch = replace(batch, weight=torch.ones(len(lengths)))
    generator = torch.Generator().manual_seed(seed)
    ratio = (torch.randn(sum(lengths), generator=generator) * 0.3).requires_grad_()
    per_response = torch.randn(len(lengths), generator=generator)
    parts = zip(ratio.split(lengths), per_response, strict=True)
    bounded = [part.clamp(max=0.1) if a > 0 else part.clamp(min=-0.2) for part, a in parts]
    expected = -torch.stack([part.mean().exp() for part in bounded]).mul(per_response).mean()

    targets = TargetTokens.of(batch)
    advantages = per_response.repeat_interleave(torch.tensor(lengths))
    config = GmpoLossConfig(clip_low=0.2, clip_high=0.1)
    terms = policy_loss_terms(config, ratio, ratio, advantages, targets)
    weights = token_weights(targets, "seq-mean-token-mean", counts_of(batch), max_response_tokens=9)
    found = (weights * terms.loss).sum()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, ratio), torch.autograd.grad(expected, ratio))


def test_sapo_by_hand() -> None:
    """At ratio 1 the loss is -2 A / tau and the gradient REINFORCE's; far from 1 the gradient vanishes."""
    config = SapoLossConfig(tau_pos=1.0, tau_neg=2.0)
    terms, gradient = on_one_response(config, [0.5, 0.5], [0.5, 0.5], [3.0, -3.0])
    assert terms.loss.tolist() == pytest.approx([-6.0, 3.0])
    assert gradient == pytest.approx([-3.0, 3.0])
    # Ratio 2: 4 sigmoid(1), with the derivative 4 sigmoid(1) (1 - sigmoid(1)) in the ratio.
    gate = 1 / (1 + math.exp(-1))
    terms, gradient = on_one_response(config, [0.5], [0.25], [3.0])
    assert terms.loss.item() == pytest.approx(-12 * gate)
    assert gradient == pytest.approx([-12 * gate * (1 - gate) * 2])
    _, gradient = on_one_response(config, [0.9], [0.01], [1.0])
    assert gradient == pytest.approx([0], abs=1e-6)


def test_sapo_with_the_gate_as_weight_by_hand() -> None:
    terms, gradient = on_one_response(SapoLossConfig(gate="weight"), [0.5], [0.25], [3.0])
    gate = 4 / (1 + math.exp(-1))
    assert terms.loss.item() == pytest.approx(3 * gate * math.log(2))
    assert gradient == pytest.approx([-3 * gate])


@pytest.mark.parametrize(
    ("new", "old", "advantage", "weight", "bound"),
    [
        (0.5, 0.4, 1.0, 1.25, ""),  # up by 0.1
        (0.6, 0.4, 1.0, 0.0, "high"),  # up by 0.2, where the advantage pushes
        (0.6, 0.4, -1.0, 1.5, ""),  # up by 0.2, where the advantage pulls back
        (0.2, 0.4, -1.0, 0.0, "low"),
        (0.2, 0.4, 1.0, 0.5, ""),
        (0.04, 0.01, 1.0, 3.0, ""),  # a ratio of 4, but few points of probability; the weight is capped at 3
    ],
)
def test_dppo_by_total_variation(new: float, old: float, advantage: float, weight: float, bound: str) -> None:
    config = DppoTvLossConfig(divergence_low=0.15, divergence_high=0.15, ratio_cap=3.0)
    terms, gradient = on_one_response(config, [new], [old], [advantage])
    assert terms.loss.item() == pytest.approx(-advantage * weight * math.log(new))
    assert gradient == pytest.approx([-advantage * weight])
    bounds = {"low": terms.clipped_low, "high": terms.clipped_high, "dual": terms.clipped_dual}
    assert " ".join(name for name, where in bounds.items() if where.item()) == bound


@pytest.mark.parametrize("threshold", [0.05, 0.2])
def test_dppo_by_the_kl_divergence_of_binary_distributions(threshold: float) -> None:
    """From 1/2 to 3/4: KL((1/2, 1/2) || (3/4, 1/4)) = log(2 / sqrt(3)) = 0.1438."""
    config = DppoKlLossConfig(divergence_low=threshold, divergence_high=threshold)
    kl = torch.distributions.kl_divergence(
        torch.distributions.Bernoulli(torch.tensor(0.5)), torch.distributions.Bernoulli(torch.tensor(0.75))
    )
    assert kl.item() == pytest.approx(math.log(2 / math.sqrt(3)))
    kept = kl.item() <= threshold
    _, gradient = on_one_response(config, [0.75, 0.75], [0.5, 0.5], [1.0, -1.0])
    assert gradient == pytest.approx([-1.5 * kept, 1.5])
    _, gradient = on_one_response(config, [0.25, 0.25], [0.5, 0.5], [1.0, -1.0])
    assert gradient == pytest.approx([-0.5, 0.5 * kept])


def test_dppo_is_finite_for_a_certain_token() -> None:
    terms, gradient = on_one_response(DppoKlLossConfig(), [1.0, 1.0], [0.5, 1.0], [1.0, 1.0])
    assert terms.clipped_high.tolist() == [True, False]
    assert gradient == pytest.approx([0.0, -1.0])


def test_dro_by_hand() -> None:
    """-A log pi + beta / 2 (log ratio)^2, with the gradient -A + beta log ratio."""
    terms, gradient = on_one_response(DroLossConfig(beta=0.5), [0.5], [0.25], [3.0])
    assert terms.loss.item() == pytest.approx(3 * math.log(2) + 0.25 * math.log(2) ** 2)
    assert gradient == pytest.approx([-3 + 0.5 * math.log(2)])


def test_importance_sampling_by_hand() -> None:
    terms, gradient = on_one_response(ImportanceSamplingLossConfig(), [0.9], [0.1], [-2.0])
    assert terms.loss.item() == pytest.approx(18)
    assert gradient == pytest.approx([18])


@pytest.mark.parametrize(
    "config",
    [
        SapoLossConfig(tau_pos=0.5, tau_neg=3.0),
        GmpoLossConfig(),
        DppoTvLossConfig(),
        DppoKlLossConfig(),
        DroLossConfig(beta=2.0),
        ImportanceSamplingLossConfig(),
    ],
    ids=lambda config: config.type,
)
def test_in_the_first_update_the_gradient_is_reinforce(config: PolicyLossConfig) -> None:
    probabilities, advantages = [0.3, 0.6, 0.9], [2.0, -1.5, 0.5]
    targets = TargetTokens.of(make_batch([(1, 3)]))
    logprobs = torch.tensor(probabilities).log().requires_grad_()
    ratio = log_ratio(logprobs, None)
    terms = policy_loss_terms(config, logprobs, ratio, torch.tensor(advantages), targets)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logprobs)
    torch.testing.assert_close(gradient, -torch.tensor(advantages))
