"""Advantages of an update relative to the mean implicit reward of each group, which GVPO needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from strop.algorithms.losses.group_variance import mean_implicit_rewards
from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.policy_loss import GvpoLossConfig
from strop.run.optimize.advantage_inputs import gather_targets, split_by_experience
from strop.types import Experience, FloatArray


def add_implicit_rewards(
    algorithm: RolloutAlgorithmConfig,
    rollouts: Sequence[Experience],
    advantages: Sequence[FloatArray],
    old_logprobs: Sequence[FloatArray] | None,
    current_logprobs: Callable[[], Sequence[FloatArray]],
) -> Sequence[FloatArray]:
    """[L] of each rollout of an update: its advantages, under GVPO plus the mean implicit reward of its group.

    Args:
        algorithm: the section `algorithm`.
        rollouts: the experiences of the update.
        advantages: [L] of each.
        old_logprobs: [L] of each, under the old policy; None where it is the current one, so that the means are 0.
        current_logprobs: computes [L] of each, under the current weights.
    """
    loss = algorithm.policy_loss
    if not isinstance(loss, GvpoLossConfig) or old_logprobs is None or not rollouts:
        return advantages
    numbers: dict[str, int] = {}
    means = mean_implicit_rewards(
        gather_targets(current_logprobs(), rollouts) - gather_targets(old_logprobs, rollouts),
        torch.tensor([each.response_tokens for each in rollouts]),
        torch.tensor([numbers.setdefault(each.group, len(numbers)) for each in rollouts]),
        beta=loss.beta,
    )
    return [old + mean for old, mean in zip(advantages, split_by_experience(means, rollouts), strict=True)]
