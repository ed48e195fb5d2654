"""SPPO: the loss by hand, its minimum, and the baseline over the group and over the step."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.policy_losses import policy_loss_terms
from strop.algorithms.registry import compute_advantages
from strop.algorithms.rollout_batch import RolloutBatch
from strop.config.schema.algorithm import SelfPlayConfig
from strop.config.schema.policy_loss import SelfPlayLossConfig

SCORED = RolloutBatch(
    rewards=torch.tensor([1.0, 0.0, 1.0, 1.0]),
    group=torch.tensor([0, 0, 1, 1]),
    tokens=torch.ones(4, dtype=torch.int64),
)


def test_the_loss_by_hand() -> None:
    """Log-ratios 0.5 and 0.25, so s = 0.75; eta A = 2 x 0.5 = 1: (0.75 - 1)^2 = 0.0625, divided among two tokens."""
    ratio = torch.tensor([0.5, 0.25], requires_grad=True)
    targets = TargetTokens.concatenated(torch.tensor([2]))
    advantages = torch.full((2,), 0.5)
    loss = policy_loss_terms(SelfPlayLossConfig(eta=2.0), ratio, ratio, advantages, targets).loss
    assert loss.tolist() == pytest.approx([0.03125, 0.03125])
    (gradient,) = torch.autograd.grad(loss.sum(), ratio)
    assert gradient.tolist() == pytest.approx([2 * (0.75 - 1)] * 2)


@pytest.mark.parametrize("over", ["group", "step"])
def test_the_minimum_is_the_policy_of_the_paper(over: Literal["group", "step"]) -> None:
    """pi = pi_old exp(eta R) / Z (arXiv 2405.00675, equation 3.1): its log-ratios make every loss 0, and
    Z is the mean of exp(eta R), so that the mean of exp(log-ratio) is 1."""
    config = SelfPlayConfig(eta=2.0, baseline_over=over, policy_loss=SelfPlayLossConfig(eta=2.0))
    advantages = compute_advantages(config, SCORED, max_response_tokens=4)
    ratio = 2 * advantages
    targets = TargetTokens.concatenated(torch.tensor([1, 1, 1, 1]))
    terms = policy_loss_terms(config.policy_loss, ratio, ratio, advantages, targets)
    assert terms.loss.tolist() == pytest.approx([0.0] * 4)
    mean = ratio.exp().mean() if over == "step" else ratio[:2].exp().mean()
    assert float(mean) == pytest.approx(1.0, abs=1e-6)


def test_the_baseline_by_hand() -> None:
    """Rewards 1, 0 | 1, 1 with eta 1: log((e + 1) / 2) and 1 for the groups; log((3 e + 1) / 4) for the step."""
    first, step = math.log((math.e + 1) / 2), math.log((3 * math.e + 1) / 4)
    found = compute_advantages(SelfPlayConfig(), SCORED, max_response_tokens=4)
    assert found.tolist() == pytest.approx([1 - first, -first, 0, 0], abs=1e-6)
    found = compute_advantages(SelfPlayConfig(baseline_over="step"), SCORED, max_response_tokens=4)
    assert found.tolist() == pytest.approx([1 - step, -step, 1 - step, 1 - step], abs=1e-6)
