"""GRPO as custom functions: a starting point for your own advantages and loss."""

from __future__ import annotations

import torch

from strop.algorithms.algorithm import RolloutBatch
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


def advantages(batch: RolloutBatch) -> torch.Tensor:
    """[N] (reward - mean) / (standard deviation + 1e-6) of each rollout's group."""
    rewards, result = batch.penalized_rewards(), torch.zeros(len(batch.rewards), dtype=torch.float64)
    for group in batch.group.unique():
        members = batch.group == group
        own = rewards[members]
        centered = own - own.mean()
        result[members] = centered / (centered.square().sum() / max(len(own) - 1, 1)).sqrt().add(1e-6)
    return result


def loss(micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
    """PPO's clipped surrogate, averaged over all target tokens of the update."""
    targets = micro_batch.loss_mask
    logprobs, adv = outputs.logprobs[targets], micro_batch.advantages[targets]
    old = logprobs.detach() if micro_batch.old_logprobs is None else micro_batch.old_logprobs[targets]
    ratio = (logprobs - old).exp()
    surrogate = torch.minimum(adv * ratio, adv * ratio.clamp(0.8, 1.2))
    total = -surrogate.sum() / counts.tokens
    clipped = ((ratio - 1).abs() > 0.2).float().sum() / counts.tokens
    return LossOutput(total, {"policy_loss": total.detach(), "outside_clip_range": clipped})
