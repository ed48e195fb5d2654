"""Conversion between experiences and the flat tensors that advantage estimators take and return.

Shapes: `L` tokens of one sequence, `K` target tokens of all experiences of a step, end to end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch

from strop.algorithms.algorithm import RolloutBatch
from strop.errors import RewardError
from strop.run.check.refusals import missing_part
from strop.types import Experience, FloatArray


def make_rollout_batch(
    experiences: Sequence[Experience],
    *,
    baselines: Mapping[str, float] | None = None,
    parts: Sequence[str] | None = (),
) -> RolloutBatch:
    """The rewards of a step's rollouts. A rollout counts once, however many experiences its turns gave.

    Args:
        experiences: those of one rollout next to each other, in the order of its turns.
        baselines: reward of the task's greedy completion, by group.
        parts: names of the parts of the reward that the algorithm reads; None for all.

    A part that a rollout does not have is NaN. Raises RewardError for a part that no rollout has.
    """
    rollouts = [list(same) for _, same in groupby(experiences, key=lambda e: (e.group, e.index))]
    numbers: dict[str, int] = {}
    group = [numbers.setdefault(rollout[0].group, len(numbers)) for rollout in rollouts]
    greedy = None if baselines is None else [baselines[rollout[0].group] for rollout in rollouts]
    names = [name for rollout in rollouts for name in rollout[0].reward_parts] if parts is None else parts
    names = tuple(dict.fromkeys(names))
    turns, states = _turn_states(experiences)
    return RolloutBatch(
        rewards=torch.tensor([rollout[0].reward for rollout in rollouts], dtype=torch.float32),
        group=torch.tensor(group, dtype=torch.int64),
        tokens=torch.tensor([sum(e.response_tokens for e in rollout) for rollout in rollouts]),
        baselines=None if greedy is None else torch.tensor(greedy, dtype=torch.float32),
        reward_parts=_parts([rollout[0] for rollout in rollouts], names) if names else None,
        intermediate_rewards=_turn_rewards(experiences),
        turns=turns,
        turn_states=states,
        sequences=torch.tensor([len(rollout) for rollout in rollouts]),
    )


def _parts(firsts: Sequence[Experience], names: Sequence[str]) -> torch.Tensor:
    """[N, P] from one experience of each rollout."""
    for name in names:
        if all(name not in experience.reward_parts for experience in firsts):
            raise RewardError(missing_part(name, firsts[0].task_id, firsts[0].reward_parts))
    table = [[experience.reward_parts.get(name, math.nan) for name in names] for experience in firsts]
    return torch.tensor(table, dtype=torch.float32)


def _turn_rewards(experiences: Sequence[Experience]) -> torch.Tensor | None:
    """[K] Rewards of single turns, at each turn's last target; None where no turn has a reward."""
    if all(experience.turn_rewards is None for experience in experiences):
        return None
    values = []
    for experience in experiences:
        padded = zeros_for(experience)
        if experience.turn_rewards is not None:
            padded[experience.turn_ends] = experience.turn_rewards
        values.append(padded)
    return gather_targets(values, experiences)


def _turn_states(experiences: Sequence[Experience]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """[K] Number of each target's turn, and [M] the states before the turns; None where a turn has no state."""
    if any(experience.turn_states is None for experience in experiences):
        return None, None
    numbers: dict[str, int] = {}
    turns: list[npt.NDArray[np.int64]] = []
    states: list[int] = []
    for experience in experiences:
        turn = np.zeros(len(experience.token_ids), dtype=np.int64)
        turn[experience.turn_ends] = 1
        turns.append((len(states) + np.cumsum(turn) - turn)[experience.loss_mask])
        states += [numbers.setdefault(state, len(numbers)) for state in experience.turn_states or ()]
    return torch.from_numpy(np.concatenate(turns)), torch.tensor(states)


def gather_targets(values: Sequence[FloatArray], experiences: Sequence[Experience]) -> torch.Tensor:
    """[K] The values at the targets, from one array [L] per experience."""
    picked = [each[e.loss_mask] for each, e in zip(values, experiences, strict=True)]
    return torch.from_numpy(np.concatenate(picked))


def split_by_experience(values: torch.Tensor, experiences: Sequence[Experience]) -> list[FloatArray]:
    """One array [L] per experience from [K]: the inverse of `gather_targets`, 0 where there is no target."""
    flat = values.numpy().astype(np.float32)
    ends = np.cumsum([e.response_tokens for e in experiences])
    result = []
    for experience, targets in zip(experiences, np.split(flat, ends[:-1]), strict=True):
        padded = np.zeros(len(experience.token_ids), dtype=np.float32)
        padded[experience.loss_mask] = targets
        result.append(padded)
    return result


def zeros_for(experience: Experience) -> FloatArray:
    """[L] Zeros."""
    return np.zeros(len(experience.token_ids), dtype=np.float32)
