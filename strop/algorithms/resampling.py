"""Resampling of a step's rollouts by their rewards."""

from __future__ import annotations

from typing import assert_never

import torch

from strop.config.schema.algorithm import RewardResamplingConfig
from strop.reward_comparison import exceeds, reaches

_LEAST = 1e-8
"""Added to each weight, so that rollouts can be drawn where all weights are 0."""


def resampling_weights(rewards: torch.Tensor, config: RewardResamplingConfig) -> torch.Tensor:
    """[N] float64 of [N]: probability with which each rollout is drawn, with replacement, in PF-PPO (Shen and Zhang,
    arXiv 2409.06957), with verl's weights before they are normalized:

    pow         |r|^power
    max_min     1 for the highest and the lowest reward of the step, 0 for the others
    max_random  0.4 for the highest reward of the step, 0.1 for the others
    """
    scores = rewards.double()
    highest = reaches(scores, float(scores.max()))
    match config.method:
        case "pow":
            weights = scores.abs().pow(config.power)
        case "max_min":
            weights = (highest | ~exceeds(scores, float(scores.min()))).double()
        case "max_random":
            weights = torch.where(highest, 0.4, 0.1).double()
        case _:
            assert_never(config.method)
    weights = weights + _LEAST
    return weights / weights.sum()
