"""Probabilities with which PF-PPO draws rollouts."""

from __future__ import annotations

import pytest
import torch

from strop.algorithms.resampling import resampling_weights
from strop.config.schema.algorithm import RewardResamplingConfig

REWARDS = torch.tensor([2.0, -1, 0, 2])


@pytest.mark.parametrize(
    ("section", "weights"),
    [
        ({}, [4, 1, 0, 4]),
        ({"power": 1}, [2, 1, 0, 2]),
        ({"method": "max_min"}, [1, 1, 0, 1]),
        ({"method": "max_random"}, [0.4, 0.1, 0.1, 0.4]),
    ],
)
def test_by_hand(section: dict[str, object], weights: list[float]) -> None:
    found = resampling_weights(REWARDS, RewardResamplingConfig.model_validate(section))
    assert found.tolist() == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-7)


def test_equal_rewards_of_0_are_drawn_alike() -> None:
    found = resampling_weights(torch.zeros(4), RewardResamplingConfig())
    assert found.tolist() == [0.25] * 4
