"""Losses of critics, reward models and routers: by hand, and against other implementations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from strop.algorithms.algorithm import AdvantageEstimate, RolloutBatch
from strop.algorithms.losses.router_losses import RouterLoss, add_losses, expert_counts
from strop.algorithms.losses.value_losses import ValueLoss, explained_variance, value_loss_terms
from strop.algorithms.registry import ProcessRewardLossSpec, compute_advantages
from strop.config.schema.algorithm import PpoConfig
from strop.config.schema.policy_gradient import OverlongPenaltyConfig
from strop.config.schema.trainer import RouterLossConfig
from strop.types import GlobalCounts, LossOutput, TokenOutputs
from tests.algorithms.batches import counts_of, make_batch

numbers = st.floats(-10, 10, width=32)


def test_the_value_loss_by_hand() -> None:
    """A clip of 0.5. The return is 1 and the old value 0, so that a value counts up to 0.5.

    0.2 is free: (0.2 - 1)^2 / 2 = 0.32. 0.8 counts as 0.5, which is worse: (0.5 - 1)^2 / 2 = 0.125
    and no gradient. -0.9 counts as -0.5, which is better, so the value itself counts: 1.9^2 / 2 = 1.805.
    """
    values = torch.tensor([0.2, 0.8, -0.9], requires_grad=True)
    terms = value_loss_terms(values, torch.zeros(3), torch.ones(3), clip=0.5)
    torch.testing.assert_close(terms.loss, torch.tensor([0.32, 0.125, 1.805]))
    assert terms.clipped.tolist() == [False, True, False]
    terms.loss.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([-0.8, 0.0, -1.9]))


def test_without_clipping_the_value_loss_is_half_the_squared_error() -> None:
    values, old, returns = torch.randn(3, 20).unbind()
    terms = value_loss_terms(values, old, returns, clip=None)
    torch.testing.assert_close(
        terms.loss, torch.nn.functional.mse_loss(values, returns, reduction="none") / 2
    )
    assert not terms.clipped.any()


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1), st.floats(0.01, 5))
def test_the_value_loss_against_a_naive_loop(rows: list[tuple[float, float, float]], clip: float) -> None:
    terms = value_loss_terms(*torch.tensor(rows, dtype=torch.float64).T, clip=clip)
    for (value, old, target), loss, clipped in zip(
        rows, terms.loss.tolist(), terms.clipped.tolist(), strict=True
    ):
        bounded = min(max(value, old - clip), old + clip)
        assert loss == pytest.approx(max((value - target) ** 2, (bounded - target) ** 2) / 2)
        assert clipped == ((bounded - target) ** 2 > (value - target) ** 2)


def test_the_value_loss_is_the_mean_over_the_targets_of_the_update() -> None:
    batch = replace(make_batch([(3, 4), (2, 1), (1, 6)]), weight=torch.ones(3))
    mask, said = batch.loss_mask, torch.randn(17, generator=torch.Generator().manual_seed(1))
    result = ValueLoss(0.5)(batch, said, counts_of(batch))
    assert batch.values is not None and batch.returns is not None
    terms = value_loss_terms(said[mask], batch.values[mask], batch.returns[mask], clip=0.5)
    torch.testing.assert_close(result.loss, terms.loss.mean())
    assert float(result.metrics["clip_fraction"]) == pytest.approx(float(terms.clipped.float().mean()))
    with pytest.raises(ValueError, match="old values and returns"):
        ValueLoss(0.5)(replace(batch, values=None), said, counts_of(batch))


def test_explained_variance() -> None:
    """Returns 1, 2, 3 have a variance of 2/3; what 1, 2, 4 leaves of them (0, 0, -1) one of 2/9."""
    returns = torch.tensor([1.0, 2, 3])
    assert explained_variance(torch.tensor([1.0, 2, 4]), returns) == pytest.approx(2 / 3)
    assert explained_variance(returns + 5, returns) == pytest.approx(1)
    assert explained_variance(torch.ones(3), returns) == pytest.approx(0)
    assert explained_variance(returns, torch.ones(3)) is None


STEP = RolloutBatch(rewards=torch.tensor([1.0, 0]), group=torch.tensor([0, 1]), tokens=torch.tensor([3, 2]))
VALUES = torch.tensor([0.5, 0.25, 0.75, 0.5, 0.25])


def estimate(values: torch.Tensor = VALUES, limit: int = 8, **settings: Any) -> AdvantageEstimate:
    scored = replace(STEP, values=values)
    return compute_advantages(PpoConfig(**settings), scored, max_response_tokens=limit)


def test_ppos_estimates_by_hand() -> None:
    """gamma 1, lam 0.5, so that A_t = delta_t + A_(t+1) / 2.

    First rollout: deltas -0.25, 0.5 and 1 - 0.75 = 0.25, so A = 0.0625, 0.625, 0.25.
    Second: deltas -0.25 and -0.25, so A = -0.375, -0.25. Returns are A + V.
    """
    found = estimate(lam=0.5, whiten=False)
    torch.testing.assert_close(found.advantages, torch.tensor([0.0625, 0.625, 0.25, -0.375, -0.25]))
    torch.testing.assert_close(found.returns, torch.tensor([0.5625, 0.875, 1.0, 0.125, 0.0]))
    white = estimate(lam=0.5)
    assert torch.equal(white.returns, found.returns), "whitening applies to advantages only"
    assert float(white.advantages.mean()) == pytest.approx(0, abs=1e-6)
    assert float(white.advantages.std()) == pytest.approx(1, rel=1e-5)


def test_the_overlong_penalty_is_in_the_reward_of_ppo() -> None:
    """The last 2 of at most 4 tokens have a penalty: the response of 3 tokens loses 0.5 at its end."""
    penalty = OverlongPenaltyConfig(buffer_tokens=2)
    found = estimate(torch.zeros(5), limit=4, whiten=False, overlong_penalty=penalty)
    torch.testing.assert_close(found.returns, torch.tensor([0.5, 0.5, 0.5, 0, 0]))


def test_the_loss_of_a_process_reward_model_by_hand() -> None:
    """Log-ratios 2 and 4 at the two targets, beta 0.5: p = sigmoid(3); the second sequence has log-ratio -2."""
    empty = make_batch([(1, 2), (1, 1)])
    batch = replace(
        empty,
        weight=torch.ones(2),
        ref_logprobs=torch.zeros(5),
        returns=torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]),
    )
    logprobs = torch.tensor([0.0, 2.0, 4.0, 0.0, -2.0], requires_grad=True)
    counts = GlobalCounts(tokens=3, sequences=2)
    found = ProcessRewardLossSpec(0.5).build()(batch, TokenOutputs(logprobs), counts)
    first, second = -math.log(1 / (1 + math.exp(-3))), -math.log(1 - 1 / (1 + math.exp(1)))
    assert float(found.loss) == pytest.approx((first + second) / 2)
    assert float(found.metrics["accuracy"]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="needs outcomes and the reference"):
        ProcessRewardLossSpec(0.5).build()(replace(batch, returns=None), TokenOutputs(logprobs), counts)
    (gradient,) = torch.autograd.grad(found.loss, logprobs)
    slope = 0.5 * (1 / (1 + math.exp(-3)) - 1) / 2
    assert gradient[1:3].tolist() == pytest.approx([slope, slope])


# Two tokens, two experts, one expert per token: probabilities 3/4 and 1/4, then 1/2 and 1/2.
LOGITS = (torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]]),)


def router_counts(tokens: int) -> GlobalCounts:
    return GlobalCounts(tokens=1, sequences=1, all_tokens=tokens)


def test_the_balance_of_routers_by_hand() -> None:
    """The second token counts three times and goes to the second expert: f = (1/4, 3/4), P = (9/16, 7/16)."""
    logits = (torch.tensor([[math.log(3.0), 0.0], [0.0, 1e-6]]),)
    weights = torch.tensor([1.0, 3.0])
    load = expert_counts(logits, weights, 1)
    assert load.tolist() == [[1.0, 3.0]]
    loss = RouterLoss(RouterLossConfig(balance_coef=0.5), top_k=1)
    found = loss(logits, weights, load / 4, router_counts(4))
    assert float(found.loss) == pytest.approx(0.5 * 2 * (9 / 64 + 21 / 64), abs=1e-5)
    assert float(found.metrics["router/balance_loss"]) == float(found.loss)


def test_the_z_loss_of_routers_by_hand() -> None:
    loss = RouterLoss(RouterLossConfig(z_coef=0.1), top_k=1)
    found = loss(LOGITS * 2, torch.tensor([1.0, 3.0]), None, router_counts(4))
    mean = (math.log(4) ** 2 + 3 * math.log(2) ** 2) / 4
    assert float(found.loss) == pytest.approx(0.1 * 2 * mean)


def test_an_even_load_is_the_minimum_of_every_layer() -> None:
    even = torch.zeros(8, 4)
    load = torch.full((3, 4), 2 / 4)
    loss = RouterLoss(RouterLossConfig(balance_coef=1), top_k=2)
    assert float(loss([even] * 3, torch.ones(8), load, router_counts(8)).loss) == pytest.approx(3)


def test_the_balance_over_a_model_is_that_of_transformers() -> None:
    random = torch.Generator().manual_seed(0)
    logits = tuple(torch.randn(20, 5, generator=random, requires_grad=True) for _ in range(3))
    mask = torch.tensor([1.0] * 15 + [0.0] * 5)
    expected: Any = load_balancing_loss_func(cast(Any, logits), 5, 2, mask)
    theirs = torch.autograd.grad(expected, logits)
    config = RouterLossConfig(balance_coef=1, balance_over="model")
    load = expert_counts(logits, mask, 2) / 15
    found = RouterLoss(config, top_k=2)(logits, mask, load, router_counts(15)).loss
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, logits), theirs)


def test_the_losses_of_routers_and_tokens_are_added() -> None:
    one, two = (LossOutput(torch.tensor(value), {str(value): torch.tensor(value)}) for value in (1.0, 2.0))
    found = add_losses(one, two)
    assert (float(found.loss), {**found.metrics}) == (3, {"1.0": 1, "2.0": 2})


def test_a_router_loss_without_coefficients_is_refused() -> None:
    with pytest.raises(ValidationError, match="remove router_loss"):
        RouterLossConfig()
