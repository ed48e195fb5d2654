"""Advantages: how much better an answer was than what could be expected of it."""

from __future__ import annotations

import torch


def grpo(
    rewards: torch.Tensor, group: torch.Tensor, *, divide_by_std: bool = True, epsilon: float = 1e-6
) -> torch.Tensor:
    """Group relative advantages (DeepSeekMath, arXiv 2402.03300, section 4.1.2).

        A_i = (r_i - mean(group)) / (std(group) + epsilon)

    with the unbiased standard deviation (divided by n - 1); without the division for
    `divide_by_std=False` (Dr. GRPO, arXiv 2503.20783). Groups may be of different sizes, in any
    order. A rollout alone in its group has nothing to be compared with: its advantage is 0.

    Where others differ: verl and Trinity-RFT take mean 0 and std 1 for a group of one, so that
    its advantage is its reward; TRL's epsilon is 1e-4; verl and Trinity-RFT agree with the rest.

    Args:
        rewards: [N] one per rollout, however many experiences its turns gave.
        group: [N] integers; equal ones belong to one group.

    Returns:
        [N] float32. Where all rewards of a group are equal, exactly 0.

    Raises:
        ValueError: a reward is NaN or infinite, or the shapes differ.
    """
    if rewards.shape != group.shape or rewards.dim() != 1:
        raise ValueError(f"rewards {tuple(rewards.shape)} and group {tuple(group.shape)} must both be [N]")
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError("rewards must be finite; broken rollouts have none and take no part")
    # A float64 sum of n equal float32 values is exact, and so the mean of equal rewards is that
    # reward: equal rewards give 0, where float32 would give rounding errors divided by epsilon.
    exact = rewards.float().double()
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)
    zeros = torch.zeros(len(size), dtype=torch.float64, device=rewards.device)
    mean = zeros.index_add(0, member, exact) / size
    centred = exact - mean[member]
    if divide_by_std:
        variance = zeros.index_add(0, member, centred.square()) / (size - 1).clamp(min=1)
        centred = centred / (variance.sqrt()[member] + epsilon)
    return centred.float()
