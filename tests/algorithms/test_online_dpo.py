"""Online DPO: pairs by hand, and the gradient against autograd of DPO's own loss."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import logsigmoid

from strop.algorithms.advantages import preferred
from strop.config.load.loader import load_values
from strop.errors import ConfigError

RUN = {
    "project": "p",
    "name": "n",
    "model": {"path": "m"},
    "data": {"train": {"path": "a.jsonl"}},
    "reward": "exact",
    "algorithm": {"type": "online_dpo"},
    "trainer": {"tasks_per_step": 8, "duration": "2 steps"},
}


@pytest.mark.parametrize(
    ("rewards", "train_ties", "expected"),
    [
        ([1.0, 0.0], False, [0.5, -0.5]),
        ([0.0, 1.0], False, [-0.5, 0.5]),
        ([1.0, 1.0], False, [0.0, 0.0]),
        ([1.0, 1.0], True, [0.5, -0.5]),
        ([0.0, 2.0, 2.0, -1.0], False, [0.0, 1.0, 0.0, -1.0]),
        ([0.0, 0.0, 1.0], True, [-0.75, 0.0, 0.75]),
    ],
)
def test_pairs_by_hand(rewards: list[float], train_ties: bool, expected: list[float]) -> None:
    """beta 0.5: beta n / 2 for the first of the highest reward, and minus it for the first of the lowest."""
    group = torch.zeros(len(rewards), dtype=torch.int64)
    found = preferred(torch.tensor(rewards), group, beta=0.5, train_ties=train_ties)
    assert found.tolist() == expected


def test_groups_are_compared_within() -> None:
    found = preferred(torch.tensor([5.0, 1.0, 4.0, 2.0]), torch.tensor([0, 1, 0, 1]), beta=0.1)
    assert found.tolist() == pytest.approx([0.1, -0.1, -0.1, 0.1])


@pytest.mark.parametrize("size", [2, 4])
def test_the_gradient_is_that_of_dpo_at_the_reference(size: int) -> None:
    """Oracle: autograd of the mean over groups of -log sigmoid(beta (chosen - rejected)), at the reference."""
    torch.manual_seed(0)
    reference = torch.randn(3 * size, dtype=torch.float64)
    rewards = torch.randn(3 * size)
    group = torch.arange(3).repeat_interleave(size)
    logprob = reference.clone().requires_grad_()
    margins = [
        (logprob - reference)[rows][rewards[rows].argmax()]
        - (logprob - reference)[rows][rewards[rows].argmin()]
        for rows in (group == number for number in range(3))
    ]
    (expected,) = torch.autograd.grad(-logsigmoid(0.3 * torch.stack(margins)).mean(), logprob)
    loss = -(preferred(rewards, group, beta=0.3) * logprob).mean()
    (found,) = torch.autograd.grad(loss, logprob)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("trainer.tasks_per_update=4", "write one update per step"),
        ("trainer.epochs_per_step=2", "write one update per step"),
        ("algorithm.policy_loss=clip", "write policy_loss: gpg"),
        ("algorithm.aggregation=token-mean", "write policy_loss: gpg"),
        ("algorithm.rollouts_per_task=1", "nothing to compare"),
    ],
)
def test_other_settings_are_refused(override: str, said: str) -> None:
    load_values(RUN)
    with pytest.raises(ConfigError, match=said):
        load_values(RUN, [override])
