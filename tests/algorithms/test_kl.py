"""KL divergence and distillation from sampled tokens: estimates by hand and in expectation, bounds, controllers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.kl import (
    AdaptiveKlController,
    FixedKlController,
    bound_divergence,
    bound_exponent,
    bound_log_ratio,
    distillation_advantages,
    estimate_kl,
    make_kl_controller,
    mean_rollout_kl,
    sampled_divergence,
)
from strop.algorithms.losses.policy_losses import log_ratio
from strop.config.schema.algorithm import GrpoConfig
from strop.config.schema.distillation import DistillationConfig, DistillationRewardConfig, SampledJsdConfig
from strop.config.schema.policy_gradient import AdaptiveKlConfig, KlRewardConfig, SampledKl


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
def test_estimators_by_hand(estimator: SampledKl, expected: float) -> None:
    policy, reference = torch.tensor([0.5]).log(), torch.tensor([0.25]).log()
    assert estimate_kl(policy, reference, estimator).item() == pytest.approx(expected, rel=1e-6)
    assert estimate_kl(policy, policy, estimator).item() == 0
    backwards = estimate_kl(reference, policy, estimator).item()
    assert backwards == pytest.approx(
        {"k1": -math.log(2), "k3": 2 - 1 - math.log(2)}.get(estimator, expected), rel=1e-6
    )


LOGITS = torch.randn(7, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
REFERENCE, OLD = torch.randn(
    2, 7, generator=torch.Generator().manual_seed(4), dtype=torch.float64
).log_softmax(-1)


@pytest.fixture
def logits() -> torch.Tensor:
    """The policy's, with gradient; the reference and an old policy are constants."""
    return LOGITS.clone().requires_grad_()


def expectation(estimator: str, logits: torch.Tensor) -> torch.Tensor:
    """E over tokens drawn from the policy; the drawing itself has no gradient, as in training."""
    logprobs = logits.log_softmax(0)
    return (logprobs.exp().detach() * estimate_kl(logprobs, REFERENCE, estimator)).sum()


def gradient(value: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


def test_expectations_of_values_and_gradients(logits: torch.Tensor) -> None:
    """k1 and k3 are unbiased as values; the gradient of k2 is that of the divergence, of k3 that of the reverse one."""
    policy = logits.log_softmax(0)
    exact = (policy.exp() * (policy - REFERENCE)).sum()
    reverse = (REFERENCE.exp() * (REFERENCE - policy)).sum()
    k1, k2, k3 = (expectation(estimator, logits) for estimator in ("k1", "k2", "k3"))
    torch.testing.assert_close(k1, exact)
    torch.testing.assert_close(k3, exact)
    torch.testing.assert_close(gradient(k1, logits), torch.zeros_like(logits))
    torch.testing.assert_close(gradient(k2, logits), gradient(exact, logits))
    torch.testing.assert_close(gradient(k3, logits), gradient(reverse, logits))


@pytest.mark.parametrize("estimator", ["k1", "abs", "k3"])
def test_a_plus_keeps_the_value_and_takes_the_gradient_of_k2(estimator: str, logits: torch.Tensor) -> None:
    plus = expectation(f"{estimator}+", logits)
    torch.testing.assert_close(plus, expectation(estimator, logits))
    torch.testing.assert_close(gradient(plus, logits), gradient(expectation("k2", logits), logits))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_weighted_by_the_ratio_tokens_of_an_old_policy_give_value_and_gradient_of_the_divergence(
    estimator, logits
):
    """E over tokens of the old policy of w * estimate; both as the exact KL(policy || reference)."""
    policy = logits.log_softmax(0)
    weighted = (policy - OLD).exp() * estimate_kl(policy, REFERENCE, estimator)
    found, exact = (OLD.exp() * weighted).sum(), (policy.exp() * (policy - REFERENCE)).sum()
    torch.testing.assert_close(found, exact)
    torch.testing.assert_close(gradient(found, logits), gradient(exact, logits))


@given(st.floats(-20, 0), st.floats(-20, 0))
def test_never_negative_where_it_should_not_be(logprob: float, ref_logprob: float) -> None:
    for estimator in ("abs", "k2", "k3"):
        assert estimate_kl(torch.tensor([logprob]), torch.tensor([ref_logprob]), estimator).item() >= 0


def test_bounds_of_log_ratios_by_hand() -> None:
    """k3 keeps its value beyond +-20, and is not bounded to 10: at log r = 5 it is e^5 - 6."""
    values = torch.tensor([-math.inf, -20.0, 0.1, 20.0, 21.0, math.inf])
    assert bound_exponent(values).tolist() == [-20, -20, torch.tensor(0.1).item(), 20, 20, 20]
    assert bound_log_ratio(values)[[0, 4, 5]].tolist() == [-1e4, 21, 1e4]
    assert log_ratio(torch.tensor([0.0]), torch.tensor([-300.0])).item() == 20
    found = estimate_kl(torch.zeros(3), torch.tensor([5.0, 300.0, -300.0]), "k3").tolist()
    assert found == pytest.approx([math.exp(5) - 6, math.exp(20) - 21, math.exp(-20) + 19], rel=1e-6)


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


def test_controllers_of_a_section_and_of_a_resumed_run() -> None:
    adaptive = AdaptiveKlConfig(target_kl=0.1, horizon=100)
    config = GrpoConfig(kl_reward=KlRewardConfig(coef=0.02, adaptive=adaptive))
    half = AdaptiveKlController(coef=0.02, target_kl=0.1, horizon=100).update(0.3, 10)
    assert make_kl_controller(config) == AdaptiveKlController(coef=0.02, target_kl=0.1, horizon=100)
    assert make_kl_controller(config, half.coef) == half
    fixed = GrpoConfig(kl_reward=KlRewardConfig(coef=0.02))
    assert make_kl_controller(fixed) == FixedKlController(0.02) == FixedKlController(0.02).update(7.0, 50)
    assert make_kl_controller(fixed, 0.5) == FixedKlController(0.5)
    assert make_kl_controller(GrpoConfig()) is None


TEACHER = {"path": "teacher"}


def test_the_reward_is_the_log_ratio_towards_the_teacher() -> None:
    """p = 1/2 and q = 1/4, 3/4: the advantage log q - log p, bounded, times the coefficient."""
    policy, teacher = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    section = DistillationRewardConfig(coef=2.0, max_divergence=0.5)
    divergence = sampled_divergence(policy, teacher, section.divergence)
    assert divergence.tolist() == pytest.approx([math.log(2), -math.log(1.5)])
    assert distillation_advantages(divergence, section).tolist() == pytest.approx([-1.0, 2 * math.log(1.5)])


def test_the_term_of_the_jsd() -> None:
    """p = 1/2, q = 1/4, beta = 1/4, m = 7/16: 1/4 1/4 log(4/7) + 3/4 1/2 log(8/7)."""
    found = sampled_divergence(
        torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)]), SampledJsdConfig(beta=0.25)
    )
    assert found.item() == pytest.approx(math.log(4 / 7) / 16 + 3 / 8 * math.log(8 / 7))


def test_a_bounded_divergence_has_no_gradient_beyond_its_bound() -> None:
    values = torch.tensor([-3.0, -1.0, 1.0, 3.0], requires_grad=True)
    bounded = bound_divergence(values, 2.0)
    assert bounded.tolist() == [-2.0, -1.0, 1.0, 2.0]
    (gradient,) = torch.autograd.grad(bounded.sum(), values)
    assert gradient.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert bound_divergence(values, None) is values


def test_tasks_are_divided_among_teachers_by_their_source() -> None:
    teachers = [TEACHER | {"sources": ["math", "gsm8k"]}, TEACHER]
    section = DistillationConfig.model_validate({"teachers": teachers, "reward": {}})
    assert [section.teacher_of(source) for source in ("gsm8k", "code", "")] == [0, 1, 1]
    alone = DistillationConfig.model_validate({"teachers": teachers[:1], "reward": {}})
    assert alone.teacher_of("code") is None
