"""The input of advantage estimators: rewards, penalties, and their positions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from strop.algorithms.groups import has_reward_variance
from strop.algorithms.rollout_batch import RolloutBatch

GOOD: dict[str, Any] = {
    "rewards": torch.tensor([1.0, 2]),
    "group": torch.tensor([5, 5]),
    "tokens": torch.tensor([1, 2]),
    "kl_penalties": torch.tensor([0.5, 0.25, 0.125]),
    "baselines": torch.tensor([0.0, 1]),
}


def test_by_hand() -> None:
    scored = RolloutBatch(**GOOD)
    assert scored.num_targets == 3
    assert scored.penalized_rewards().tolist() == [1 - 0.5, 2 - 0.25 - 0.125]
    assert scored.token_rewards().tolist() == [1 - 0.5, -0.25, 2 - 0.125]
    assert scored.expand_to_tokens(torch.tensor([7, 8])).tolist() == [7, 8, 8]


def test_without_penalties_scores_are_the_rewards() -> None:
    scored = RolloutBatch(**(GOOD | {"kl_penalties": None}))
    assert scored.penalized_rewards().tolist() == [1, 2]
    assert scored.token_rewards().tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rewards": torch.tensor([1.0, math.nan])}, "rewards must be finite"),
        ({"rewards": torch.tensor([1.0, math.inf])}, "rewards must be finite"),
        ({"kl_penalties": torch.tensor([0.5, math.nan, 0])}, "kl_penalties must be finite"),
        ({"baselines": torch.tensor([0.5, math.nan])}, "baselines must be finite"),
        ({"kl_penalties": torch.zeros(2)}, "penalties"),
        ({"group": torch.zeros(3, dtype=torch.int64)}, "group"),
        ({"tokens": torch.tensor([3, 0])}, "at least one target"),
    ],
)
def test_inconsistent_batches_are_refused(wrong: dict[str, torch.Tensor], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RolloutBatch(**(GOOD | wrong))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([], False), ([1.0], False), ([0.0, 0.0], False), ([1.0, 1.0, 1.0], False), ([0.0, 1.0], True)],
)
def test_which_groups_have_reward_variance(rewards: list[float], expected: bool) -> None:
    assert has_reward_variance(rewards) is expected
