"""KL estimators: values by hand, and expectations of value and gradient over a small vocabulary."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from strop.algorithms.kl import AdaptiveKlController, FixedKlController, estimate_kl, mean_rollout_kl
from strop.algorithms.registry import make_kl_controller
from strop.config.schema.group_baselines import GrpoConfig
from strop.config.schema.policy_gradient import AdaptiveKlConfig, KlLossConfig, KlRewardConfig, SampledKl


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        # A token with probability 1/2 under the policy and 1/4 under the reference: r = 1/2.
        ("k1", math.log(2)),
        ("abs", math.log(2)),
        ("k2", math.log(2) ** 2 / 2),
        ("k3", 0.5 - 1 + math.log(2)),
    ],
)
def test_by_hand(estimator: SampledKl, expected: float) -> None:
    found = estimate_kl(torch.tensor([0.5]).log(), torch.tensor([0.25]).log(), estimator)
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.fixture
def policy_and_reference() -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of 7 tokens each; the policy's with gradient to its logits."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    return logits, reference


def expectation(estimator: SampledKl, logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """E over tokens drawn from the policy; the drawing itself has no gradient, as in training."""
    logprobs = logits.log_softmax(0)
    return (logprobs.exp().detach() * estimate_kl(logprobs, reference, estimator)).sum()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_as_a_value(estimator: SampledKl, policy_and_reference) -> None:  # type: ignore[no-untyped-def]
    logits, reference = policy_and_reference
    exact = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=logits), torch.distributions.Categorical(logits=reference)
    )
    torch.testing.assert_close(expectation(estimator, logits, reference), exact)


def test_gradients_in_expectation(policy_and_reference) -> None:  # type: ignore[no-untyped-def]
    logits, reference = policy_and_reference

    def gradient(of: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(of, logits)[0]

    policy = logits.log_softmax(0)
    reverse = gradient((policy.exp() * (policy - reference)).sum())
    forward = gradient((reference.exp() * (reference - logits.log_softmax(0))).sum())
    torch.testing.assert_close(gradient(expectation("k1", logits, reference)), torch.zeros_like(logits))
    torch.testing.assert_close(gradient(expectation("k2", logits, reference)), reverse)
    torch.testing.assert_close(gradient(expectation("k3", logits, reference)), forward)


@pytest.mark.parametrize("estimator", ["k1", "abs", "k3"])
def test_a_plus_keeps_the_value_and_takes_the_gradient_of_k2(
    estimator: SampledKl,
    policy_and_reference: tuple[torch.Tensor, torch.Tensor],
) -> None:
    logits, reference = policy_and_reference
    value, gradient = (expectation(f"{estimator}{suffix}", logits, reference) for suffix in ("", "+"))  # type: ignore[arg-type]
    torch.testing.assert_close(gradient, value)
    expected = torch.autograd.grad(expectation("k2", logits, reference), logits)
    torch.testing.assert_close(torch.autograd.grad(gradient, logits), expected)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_weighted_by_the_ratio_tokens_of_an_old_policy_give_value_and_gradient_of_the_divergence(
    estimator: SampledKl,
    policy_and_reference: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """E over tokens of the old policy of w * estimate; both as the exact KL(policy || reference)."""
    logits, reference = policy_and_reference
    old = torch.randn(7, generator=torch.Generator().manual_seed(4), dtype=torch.float64).log_softmax(0)
    policy = logits.log_softmax(0)
    weighted = (policy - old).exp() * estimate_kl(policy, reference, estimator)
    found, exact = (old.exp() * weighted).sum(), (policy.exp() * (policy - reference)).sum()
    torch.testing.assert_close(found, exact)
    torch.testing.assert_close(
        torch.autograd.grad(found, logits, retain_graph=True), torch.autograd.grad(exact, logits)
    )


def test_the_ratio_weights_k1_and_k3_only() -> None:
    with pytest.raises(ValidationError, match="estimators k1 and k3, and estimator is k3\\+"):
        KlLossConfig(estimator="k3+", weight_by_ratio=True)
    with pytest.raises(ValidationError, match="max_ratio has no effect"):
        KlLossConfig(max_ratio=2.0)


@given(st.floats(-20, 0), st.floats(-20, 0))
def test_never_negative_where_it_should_not_be(logprob: float, ref_logprob: float) -> None:
    for estimator in ("abs", "k2", "k3"):
        assert estimate_kl(torch.tensor([logprob]), torch.tensor([ref_logprob]), estimator).item() >= 0  # type: ignore[arg-type]


@given(st.floats(-20, 0))
def test_the_divergence_of_equal_policies_is_zero(logprob: float) -> None:
    for estimator in ("k1", "abs", "k2", "k3"):
        same = torch.tensor([logprob])
        assert estimate_kl(same, same, estimator).item() == 0  # type: ignore[arg-type]


def test_a_controller_follows_the_mean_over_rollouts() -> None:
    # Rollouts of three tokens and one: means (1 + 2 + 3) / 3 = 2 and 6, and so 4; not 12 / 4 = 3.
    assert mean_rollout_kl(torch.tensor([1.0, 2, 3, 6]), torch.tensor([3, 1])) == 4


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        # 50 rollouts of a horizon of 100 allow a change by at most 0.2 / 2.
        (0.1, 1.0),
        (0.109, 1 + 0.09 / 2),
        (0.5, 1.1),
        (0.091, 1 - 0.09 / 2),
        (0.0, 0.9),
        (-0.3, 0.9),  # k1 may be negative
    ],
)
def test_the_adaptive_coefficient_by_hand(kl: float, factor: float) -> None:
    start = AdaptiveKlController(coef=0.02, target_kl=0.1, horizon=100)
    assert start.update(kl, 50).coef == pytest.approx(0.02 * factor)
    assert start.coef == 0.02


def test_a_fixed_coefficient_stays() -> None:
    assert FixedKlController(0.02).update(7.0, 50) == FixedKlController(0.02)


def test_a_controller_resumes_from_its_saved_coefficient() -> None:
    config = GrpoConfig(
        kl_reward=KlRewardConfig(coef=0.02, adaptive=AdaptiveKlConfig(target_kl=0.1, horizon=100))
    )
    whole = make_kl_controller(config)
    assert whole is not None
    half = whole.update(0.3, 10)
    resumed = make_kl_controller(config, half.coef)
    assert resumed is not None
    assert resumed.update(0.05, 10) == half.update(0.05, 10)
    assert make_kl_controller(GrpoConfig(kl_reward=KlRewardConfig(coef=0.02))) == FixedKlController(0.02)
    assert make_kl_controller(GrpoConfig()) is None
