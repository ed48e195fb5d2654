"""GRPO written as a user's own functions, with the arithmetic of the built-in ones."""

from __future__ import annotations

import torch

from strop.algorithms.algorithm import RolloutBatch
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


def advantages(batch: RolloutBatch) -> torch.Tensor:
    """(reward - mean) / (std + 1e-6) of each rollout's group."""
    rewards, result = batch.penalized_rewards(), torch.zeros(len(batch.rewards), dtype=torch.float64)
    for group in batch.group.unique():
        members = batch.group == group
        own = rewards[members]
        centered = own - own.sum() / len(own)
        std = (centered.square().sum() / max(len(own) - 1, 1)).sqrt()
        result[members] = centered / (std + 1e-6)
    return result


def loss(micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
    """The clipped surrogate with dual clip, averaged over all tokens of the update."""
    targets = micro_batch.loss_mask.nonzero().squeeze(1)
    logprobs, adv = outputs.logprobs[targets], micro_batch.advantages[targets]
    old = logprobs.detach() if micro_batch.old_logprobs is None else micro_batch.old_logprobs[targets]
    ratio = (logprobs - old).exp()
    clipped = torch.maximum(-adv * ratio, -adv * ratio.clamp(0.8, 1.2))
    clipped = torch.where((adv < 0) & (ratio > 3.0), -adv * 3.0, clipped)
    total = ((1 / counts.tokens) * clipped).sum()
    return LossOutput(total, {"my_loss": total.detach()})
