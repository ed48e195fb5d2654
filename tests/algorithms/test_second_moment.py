"""M2PO: the tokens without a gradient, by hand and against the greedy definition, and the loss."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.policy_losses import policy_loss_terms
from strop.algorithms.losses.second_moment import excess_tokens
from strop.config.schema.policy_loss import M2poLossConfig


def excess(log_ratio: list[float], advantages: list[float], bound: float) -> list[bool]:
    return excess_tokens(torch.tensor(log_ratio), torch.tensor(advantages), max_second_moment=bound).tolist()


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        # Squares 1, 4 and 9 of the first three tokens, which move away; means 1, 2.5 and 14/3 in ascending order.
        (5.0, [False, False, False]),
        (2.5, [False, False, True]),
        (2.4, [False, True, True]),
        (0.9, [True, True, True]),
    ],
)
def test_the_largest_log_ratios_are_left_out(bound: float, expected: list[bool]) -> None:
    """The last tokens move back to the old policy, or have no advantage."""
    assert excess([1.0, -2.0, 3.0, -9.0, 9.0, 9.0], [2.0, -1.0, 1.0, 1.0, -1.0, 0.0], bound) == [
        *expected,
        False,
        False,
        False,
    ]


def test_nothing_is_left_out_on_policy() -> None:
    assert excess([0.0, 0.0], [1.0, -1.0], 0.0) == [False, False]


@given(seed=st.integers(0, 200), bound=st.floats(0.01, 2.0))
def test_as_few_as_possible_are_left_out(seed: int, bound: float) -> None:
    """Remove the largest until the mean of the rest is within the bound (arXiv 2510.01161, algorithm 1)."""
    random = torch.Generator().manual_seed(seed)
    ratio, advantages = torch.randn(2, 30, generator=random)
    rest = [i for i in range(30) if ratio[i] * advantages[i] > 0]
    while rest and sum(float(ratio[i].double()) ** 2 for i in rest) / len(rest) > bound:
        rest.remove(max(rest, key=lambda i: abs(float(ratio[i]))))
    moving = (ratio * advantages > 0).tolist()
    found = excess_tokens(ratio, advantages, max_second_moment=bound).tolist()
    assert found == [moving[i] and i not in rest for i in range(30)]


def test_the_loss_by_hand() -> None:
    """Ratios 2 and 1/2 with A = 1 and -2; the first token is left out."""
    ratio = torch.tensor([math.log(2), -math.log(2)], requires_grad=True)
    targets = TargetTokens.concatenated(torch.tensor([2]))
    selected = TargetTokens(
        targets.index, targets.segment, targets.tokens, targets.weight, 1, torch.tensor([True, False])
    )
    advantages = torch.tensor([1.0, -2.0])
    loss = policy_loss_terms(M2poLossConfig(), ratio, ratio, advantages, selected).loss
    assert loss.tolist() == pytest.approx([0.0, 1.0])
    (gradient,) = torch.autograd.grad(loss.sum(), ratio)
    assert gradient.tolist() == pytest.approx([0.0, 1.0])
