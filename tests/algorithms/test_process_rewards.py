"""PRIME: rewards, advantages and the loss of the process reward model, by hand and against verl's formula."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms import registry
from strop.algorithms.process_rewards import ProcessRewardLoss, implicit_rewards, prime
from strop.algorithms.rollout_batch import RolloutBatch
from strop.algorithms.token_advantages import whiten
from strop.config.schema.algorithm import PrimeConfig
from strop.types import GlobalCounts, TokenOutputs
from tests.algorithms.batches import make_batch


def test_the_rewards_by_hand() -> None:
    """beta 0.5; the last token of each rollout has no reward; rewards-to-go 1.5, 1, 0 and -2, 0."""
    ratio, tokens = torch.tensor([1.0, 2.0, 9.0, -4.0, 7.0]), torch.tensor([3, 2])
    plain = implicit_rewards(ratio, tokens, beta=0.5, normalize=False)
    assert plain.tolist() == [0.5, 1.0, 0.0, -2.0, 0.0]
    normalized = implicit_rewards(ratio, tokens, beta=0.5, normalize=True)
    assert normalized.tolist() == pytest.approx([0.25, 0.5, 0.0, -1.0, 0.0], rel=1e-5)


def test_the_advantages_by_hand() -> None:
    """Two rollouts of a group, with 2 and 1 tokens: means 0.5 and 0, outcomes 1 and 0, both weights 1.

    Process: 2 r - 0.5 = (1.5, -0.5) and -0.5; outcome: 2 R - 1 = 1 and -1. Rewards (1.5, 0.5) and -1.5; returns (2,
    0.5) and -1.5, which are whitened.
    """
    batch = RolloutBatch(
        rewards=torch.tensor([1.0, 0.0]),
        group=torch.tensor([0, 0]),
        tokens=torch.tensor([2, 1]),
        process_rewards=torch.tensor([1.0, 0.0, 0.0]),
    )
    expected = whiten(torch.tensor([2.0, 0.5, -1.5], dtype=torch.float64))
    torch.testing.assert_close(prime(batch, outcome_coef=1.0, process_coef=1.0), expected)
    configured = PrimeConfig(outcome_coef=1.0, process_coef=1.0)
    found = registry.compute_advantages(configured, batch, max_response_tokens=8)
    torch.testing.assert_close(found, expected.float())


def test_a_rollout_alone_in_its_group_has_no_reward() -> None:
    batch = RolloutBatch(
        rewards=torch.tensor([1.0]),
        group=torch.tensor([0]),
        tokens=torch.tensor([2]),
        process_rewards=torch.tensor([3.0, 0.0]),
    )
    assert prime(batch, outcome_coef=5.0, process_coef=5.0).tolist() == [0.0, 0.0]


@given(seed=st.integers(0, 100))
def test_the_advantages_are_those_of_verls_recipe(seed: int) -> None:
    """verl-recipe prime/prime_core_algos.py, for one padded batch: each source of reward minus its leave-one-out
    baseline at the tokens that have it, then the sum, the returns, and whitening."""
    random = torch.Generator().manual_seed(seed)
    groups, size, longest = 3, 4, 5
    tokens = torch.randint(1, longest + 1, (groups * size,), generator=random)
    real = torch.arange(longest) < tokens[:, None]
    process = torch.where(real, torch.randn(groups * size, longest, generator=random), 0.0).double()
    outcomes = torch.randint(0, 2, (groups * size,), generator=random).double()

    def leave_one_out(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        means = (values * where).sum(1) / where.sum(1)
        sums = means.view(groups, size).sum(1).repeat_interleave(size)
        return (values * size / (size - 1) - (sums / (size - 1))[:, None]) * where

    last = torch.arange(longest) == tokens[:, None] - 1
    rewards = 2.0 * leave_one_out(process, real) + 3.0 * leave_one_out(outcomes[:, None] * last, last)
    returns = rewards.flip(1).cumsum(1).flip(1)[real]
    expected = (returns - returns.mean()) * torch.rsqrt(returns.var() + 1e-8)
    batch = RolloutBatch(
        rewards=outcomes.float(),
        group=torch.arange(groups).repeat_interleave(size),
        tokens=tokens,
        process_rewards=process[real],
    )
    torch.testing.assert_close(prime(batch, outcome_coef=3.0, process_coef=2.0), expected)


def test_the_loss_by_hand() -> None:
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
    found = ProcessRewardLoss(0.5)(batch, TokenOutputs(logprobs), counts)
    first, second = -math.log(1 / (1 + math.exp(-3))), -math.log(1 - 1 / (1 + math.exp(1)))
    assert float(found.loss) == pytest.approx((first + second) / 2)
    assert float(found.metrics["accuracy"]) == pytest.approx(1.0)
    (gradient,) = torch.autograd.grad(found.loss, logprobs)
    slope = 0.5 * (1 / (1 + math.exp(-3)) - 1) / 2
    assert gradient[1:3].tolist() == pytest.approx([slope, slope])
