"""Losses of routers against cases worked by hand and transformers' own function."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from pydantic import ValidationError
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from strop.algorithms.losses.router_losses import RouterLoss, expert_counts
from strop.config.schema.router_loss import RouterLossConfig
from strop.types import GlobalCounts

# Two tokens, two experts, one expert per token: probabilities 3/4 and 1/4, then 1/2 and 1/2.
LOGITS = (torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]]),)


def counts(tokens: int) -> GlobalCounts:
    return GlobalCounts(tokens=1, sequences=1, all_tokens=tokens)


def test_balance_by_hand() -> None:
    """The second token counts three times and goes to the second expert: f = (1/4, 3/4), P = (9/16, 7/16)."""
    logits = (torch.tensor([[math.log(3.0), 0.0], [0.0, 1e-6]]),)
    weights = torch.tensor([1.0, 3.0])
    load = expert_counts(logits, weights, 1)
    assert load.tolist() == [[1.0, 3.0]]
    loss = RouterLoss(RouterLossConfig(balance_coef=0.5), top_k=1)
    found = loss(logits, weights, load / 4, counts(4))
    assert float(found.loss) == pytest.approx(0.5 * 2 * (9 / 64 + 21 / 64), abs=1e-5)
    assert float(found.metrics["router/balance_loss"]) == float(found.loss)


def test_z_loss_by_hand() -> None:
    loss = RouterLoss(RouterLossConfig(z_coef=0.1), top_k=1)
    found = loss(LOGITS * 2, torch.tensor([1.0, 3.0]), None, counts(4))
    mean = (math.log(4) ** 2 + 3 * math.log(2) ** 2) / 4
    assert float(found.loss) == pytest.approx(0.1 * 2 * mean)


def test_an_even_load_is_the_minimum_of_every_layer() -> None:
    even = torch.zeros(8, 4)
    load = torch.full((3, 4), 2 / 4)
    loss = RouterLoss(RouterLossConfig(balance_coef=1), top_k=2)
    assert float(loss([even] * 3, torch.ones(8), load, counts(8)).loss) == pytest.approx(3)


def test_the_balance_over_a_model_is_that_of_transformers() -> None:
    random = torch.Generator().manual_seed(0)
    logits = tuple(torch.randn(20, 5, generator=random, requires_grad=True) for _ in range(3))
    mask = torch.tensor([1.0] * 15 + [0.0] * 5)
    expected: Any = load_balancing_loss_func(cast(Any, logits), 5, 2, mask)
    theirs = torch.autograd.grad(expected, logits)
    config = RouterLossConfig(balance_coef=1, balance_over="model")
    load = expert_counts(logits, mask, 2) / 15
    found = RouterLoss(config, top_k=2)(logits, mask, load, counts(15)).loss
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, logits), theirs)


def test_a_loss_without_coefficients_is_refused() -> None:
    with pytest.raises(ValidationError, match="remove router_loss"):
        RouterLossConfig()
