"""KL estimators: their values, and in expectation over a small vocabulary what value and gradient are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.kl import divergence
from strop.config.schema.algorithm import KlEstimator


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
def test_by_hand(estimator: KlEstimator, expected: float) -> None:
    found = divergence(torch.tensor([0.5]).log(), torch.tensor([0.25]).log(), estimator)
    assert found.item() == pytest.approx(expected, rel=1e-6)


@pytest.fixture
def policy_and_reference() -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of 7 tokens each; the policy's with gradient to its logits."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    return logits, reference


def expectation(estimator: KlEstimator, logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """E over tokens drawn from the policy; the drawing itself has no gradient, as in training."""
    logprobs = logits.log_softmax(0)
    return (logprobs.exp().detach() * divergence(logprobs, reference, estimator)).sum()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_as_a_value(estimator: KlEstimator, policy_and_reference) -> None:  # type: ignore[no-untyped-def]
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


@given(st.floats(-20, 0), st.floats(-20, 0))
def test_never_negative_where_it_should_not_be(logprob: float, ref_logprob: float) -> None:
    for estimator in ("abs", "k2", "k3"):
        assert divergence(torch.tensor([logprob]), torch.tensor([ref_logprob]), estimator).item() >= 0  # type: ignore[arg-type]


@given(st.floats(-20, 0))
def test_nothing_between_equals(logprob: float) -> None:
    for estimator in ("k1", "abs", "k2", "k3"):
        same = torch.tensor([logprob])
        assert divergence(same, same, estimator).item() == 0  # type: ignore[arg-type]
