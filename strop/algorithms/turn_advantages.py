"""Advantage estimator with one value per turn of an agent: GiGPO."""

from __future__ import annotations

from typing import Literal

import torch

from strop.algorithms.advantages import grpo
from strop.algorithms.rollout_batch import RolloutBatch


def gigpo(
    scored: RolloutBatch,
    *,
    turn_weight: float,
    gamma: float,
    divide_by_std: bool,
    epsilon: float = 1e-6,
    states_over: Literal["group", "step"] = "group",
) -> torch.Tensor:
    """[K] Group-in-group advantages (Feng et al., arXiv 2505.10978).

        A_t = A(rollout) + turn_weight A(turn)

    A(rollout) is GRPO's. A(turn) compares a turn's return, the sum of its reward and later ones of the rollout,
    discounted by `gamma` per turn, with the returns of all turns of the group (`states_over="step"`: of the step)
    that begin in the same state, in the same way; it is 0 for a turn that is alone in its state.

    Raises ValueError without states.
    """
    if scored.turns is None or scored.turn_states is None:
        raise ValueError("gigpo needs RolloutBatch.turns and turn_states, which are missing")
    count, device = len(scored.turn_states), scored.rewards.device
    rewards = torch.zeros(count, dtype=torch.float64, device=device)
    rewards.index_add_(0, scored.turns, scored.token_rewards())
    group = torch.zeros(count, dtype=torch.int64, device=device)
    rollout = torch.zeros(count, dtype=torch.int64, device=device)
    group[scored.turns] = scored.expand_to_tokens(scored.group)
    rollout[scored.turns] = scored.expand_to_tokens(torch.arange(len(scored.tokens), device=device))
    returns = _returns(rewards.tolist(), rollout.tolist(), gamma)
    compared = torch.zeros_like(group) if states_over == "step" else group
    _, same = torch.stack([compared, scored.turn_states]).unique(dim=1, return_inverse=True)  # type: ignore[no-untyped-call]
    of_rollouts = grpo(scored.penalized_rewards(), scored.group, divide_by_std=divide_by_std, epsilon=epsilon)
    of_turns = grpo(torch.tensor(returns, device=device), same, divide_by_std=divide_by_std, epsilon=epsilon)
    return scored.expand_to_tokens(of_rollouts) + turn_weight * of_turns[scored.turns]


def _returns(rewards: list[float], rollout: list[int], gamma: float) -> list[float]:
    """Sum of each turn's reward and later ones of its rollout, discounted by `gamma`."""
    returns = list(rewards)
    for turn in reversed(range(len(rewards) - 1)):
        if rollout[turn] == rollout[turn + 1]:
            returns[turn] += gamma * returns[turn + 1]
    return returns
