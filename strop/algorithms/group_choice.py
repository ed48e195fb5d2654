"""Groups of a step that its updates train on: all, those of varied rewards, or rollouts drawn by their rewards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import assert_never

import numpy as np
import torch

from strop.config.schema.algorithm import RewardResamplingConfig
from strop.reward_comparison import are_equal, exceeds, reaches
from strop.types import ExperienceGroup


def has_reward_variance(rewards: Sequence[float]) -> bool:
    """Whether the rewards of a group differ, so that it has a gradient (DAPO, arXiv 2503.14476, equation 11).

    False for a group of one or none. (verl's DAPO keeps groups of one.)
    """
    return not are_equal(rewards)


def group_indices(groups: Sequence[ExperienceGroup]) -> list[list[int]]:
    """Indices of each group's experiences among those of all groups."""
    ends = np.cumsum([len(group.experiences) for group in groups])
    return [list(range(end - len(g.experiences), end)) for g, end in zip(groups, ends, strict=True)]


def varied_groups(groups: Sequence[ExperienceGroup], min_reward_std: float) -> list[list[int]]:
    """`group_indices` of the groups whose rewards have an unbiased standard deviation above `min_reward_std`; that of a
    single rollout is 0."""
    found = []
    for group, indices in zip(groups, group_indices(groups), strict=True):
        rewards = list({experience.index: experience.reward for experience in group.experiences}.values())
        if len(rewards) > 1 and exceeds(np.std(rewards, ddof=1), min_reward_std):
            found.append(indices)
    return found


def repeat_groups(groups: Sequence[list[int]], count: int, seed: int) -> list[list[int]]:
    """The groups, and draws from them with replacement up to `count` groups; none if there are none."""
    random = np.random.Generator(np.random.Philox(seed))
    missing = count - len(groups) if groups else 0
    return [*groups, *(groups[i] for i in random.integers(len(groups) or 1, size=missing))]


def resample_groups(
    groups: Sequence[ExperienceGroup], section: RewardResamplingConfig, seed: int
) -> list[list[int]]:
    """Indices of the experiences of as many rollouts as the groups have, drawn with replacement, in groups of the same
    numbers of rollouts."""
    experiences = [experience for group in groups for experience in group.experiences]
    keys = [(experience.group, experience.index) for experience in experiences]
    rollouts = [[i for i, _ in same] for _, same in groupby(enumerate(keys), key=lambda pair: pair[1])]
    weights = resampling_weights(torch.tensor([experiences[first].reward for first, *_ in rollouts]), section)
    random = np.random.Generator(np.random.Philox(seed))
    drawn = iter(random.choice(len(rollouts), size=len(rollouts), p=weights.numpy()))
    sizes = [len({experience.index for experience in group.experiences}) for group in groups]
    return [[i for _ in range(size) for i in rollouts[next(drawn)]] for size in sizes]


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
