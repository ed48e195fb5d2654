"""Experiences as advantage estimators want them, and their answers back by experience."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import torch

from strop.algorithms.scored import Scored
from strop.types import Experience, Floats


def score(experiences: Sequence[Experience], *, baselines: Mapping[str, float] | None = None) -> Scored:
    """A step's rollouts with their rewards. One counts once, however many experiences it gave.

    Args:
        experiences: those of one rollout side by side, in the order of its turns.
        baselines: by group, the reward of the task's greedy answer.
    """
    rollouts = [list(same) for _, same in groupby(experiences, key=lambda e: (e.group, e.index))]
    numbers: dict[str, int] = {}
    group = [numbers.setdefault(rollout[0].group, len(numbers)) for rollout in rollouts]
    greedy = None if baselines is None else [baselines[rollout[0].group] for rollout in rollouts]
    return Scored(
        rewards=torch.tensor([rollout[0].reward for rollout in rollouts], dtype=torch.float32),
        group=torch.tensor(group, dtype=torch.int64),
        tokens=torch.tensor([sum(e.response_tokens for e in rollout) for rollout in rollouts]),
        baselines=None if greedy is None else torch.tensor(greedy, dtype=torch.float32),
        earned=_earned(experiences),
    )


def _earned(experiences: Sequence[Experience]) -> torch.Tensor | None:
    """[K] What turns earned by themselves, at their last targets; None where none did."""
    if all(experience.turn_rewards is None for experience in experiences):
        return None
    values = []
    for experience in experiences:
        whole = zeros_of(experience)
        if experience.turn_rewards is not None:
            whole[experience.turn_ends] = experience.turn_rewards
        values.append(whole)
    return targets_of(values, experiences)


def targets_of(values: Sequence[Floats], experiences: Sequence[Experience]) -> torch.Tensor:
    """[K] of [L] each: what stands at the targets, experiences end to end."""
    picked = [each[e.loss_mask] for each, e in zip(values, experiences, strict=True)]
    return torch.from_numpy(np.concatenate(picked))


def by_experience(values: torch.Tensor, experiences: Sequence[Experience]) -> list[Floats]:
    """[L] each of [K]: back in its place, 0 where there is no target."""
    parts = values.numpy().astype(np.float32)
    ends = np.cumsum([e.response_tokens for e in experiences])
    result = []
    for experience, part in zip(experiences, np.split(parts, ends[:-1]), strict=True):
        whole = np.zeros(len(experience.token_ids), dtype=np.float32)
        whole[experience.loss_mask] = part
        result.append(whole)
    return result


def zeros_of(experience: Experience) -> Floats:
    """[L] Nothing, for what an experience does not have."""
    return np.zeros(len(experience.token_ids), dtype=np.float32)
