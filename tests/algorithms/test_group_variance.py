"""GVPO: the loss by hand, its gradient against the definition for a whole group, and the groups' means."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.group_variance import mean_implicit_rewards
from strop.algorithms.losses.policy_losses import policy_loss_terms
from strop.config.schema.group_baselines import GrpoConfig
from strop.config.schema.policy_loss import GvpoLossConfig
from strop.run.optimize.group_implicit_rewards import add_implicit_rewards
from tests.models.models import experience

TOKENS = torch.tensor([2, 1, 3, 1])
GROUP = torch.tensor([0, 0, 1, 1])


def test_the_loss_by_hand() -> None:
    """Log-ratios ln 2 and ln 2, beta 0.5: beta s = ln 2; A + m = 1: (ln 2 - 1)^2 / 2, divided among two tokens."""
    ratio = torch.tensor([math.log(2), math.log(2)], requires_grad=True)
    targets = TargetTokens.concatenated(torch.tensor([2]))
    loss = policy_loss_terms(GvpoLossConfig(beta=0.5), ratio, ratio, torch.ones(2), targets).loss
    expected = (math.log(2) - 1) ** 2 / 4
    assert loss.tolist() == pytest.approx([expected, expected])
    (gradient,) = torch.autograd.grad(loss.sum(), ratio)
    assert gradient.tolist() == pytest.approx([0.5 * (math.log(2) - 1)] * 2)


def test_the_means_by_hand() -> None:
    """s: 3, 5 | 6, -2; beta 0.1: means 0.4 and 0.2."""
    ratio = torch.tensor([1.0, 2.0, 5.0, 1.0, 2.0, 3.0, -2.0])
    found = mean_implicit_rewards(ratio, TOKENS, GROUP, beta=0.1)
    assert found.tolist() == pytest.approx([0.4] * 3 + [0.2] * 4)


def test_the_gradient_is_that_of_the_variance_of_each_group() -> None:
    """arXiv 2504.19599, equation 8: half the sum of ((beta s - mean beta s) - (R - mean R))^2, whose gradient does not
    change when the mean is held fixed, because the differences of a group add up to 0."""
    random = torch.Generator().manual_seed(0)
    ratio = torch.randn(7, generator=random, dtype=torch.float64, requires_grad=True)
    rewards, beta = torch.randn(4, generator=random, dtype=torch.float64), 0.3
    response = torch.arange(4).repeat_interleave(TOKENS)
    implicit = torch.zeros(4, dtype=torch.float64).index_add(0, response, ratio) * beta
    loss = torch.zeros((), dtype=torch.float64)
    for group in (0, 1):
        own = implicit[group == GROUP] - implicit[group == GROUP].mean()
        loss = loss + (own - rewards[group == GROUP] + rewards[group == GROUP].mean()).square().sum() / 2
    (expected,) = torch.autograd.grad(loss, ratio)

    centered = rewards - torch.stack([rewards[group == GROUP].mean() for group in GROUP])
    shifted = centered[response] + mean_implicit_rewards(ratio.detach(), TOKENS, GROUP, beta=beta)
    targets = TargetTokens.concatenated(TOKENS)
    terms = policy_loss_terms(GvpoLossConfig(beta=beta), ratio, ratio, shifted, targets)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), ratio)
    torch.testing.assert_close(gradient, expected)


def test_an_update_adds_the_means_of_its_groups() -> None:
    """Groups a (two responses of 2 tokens) and b: log-ratios 1 and 3 per token in a, so s is 2 and 6; 2 in b."""
    rollouts = [
        experience([1, 2], [3, 4], group=group, index=index)
        for group, index in (("a", 0), ("a", 1), ("b", 0))
    ]
    masks = [each.loss_mask.astype(np.float32) for each in rollouts]
    size = float(masks[0].sum())
    current = [mask * ratio for mask, ratio in zip(masks, (1.0, 3.0, 2.0), strict=True)]
    advantages = [mask * 0.5 for mask in masks]
    gvpo = GrpoConfig(policy_loss=GvpoLossConfig(beta=0.1), aggregation="seq-mean-token-sum")
    zeros = [np.zeros_like(mask) for mask in masks]
    found = add_implicit_rewards(gvpo, rollouts, advantages, zeros, lambda: current)
    for each, mask in zip(found, masks, strict=True):
        np.testing.assert_allclose(each, mask * (0.5 + 0.1 * 2 * size), rtol=1e-6)
    assert add_implicit_rewards(GrpoConfig(), rollouts, advantages, zeros, lambda: current) is advantages
    assert add_implicit_rewards(gvpo, rollouts, advantages, None, lambda: current) is advantages
