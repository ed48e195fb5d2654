"""Choice of the tokens of a step that the policy's loss reads."""

from __future__ import annotations

import torch


def clip_b(
    logprobs: torch.Tensor, entropies: torch.Tensor, advantages: torch.Tensor, *, deviations: float
) -> torch.Tensor:
    """[K] bool: the tokens that Clip_B keeps ("On the Entropy Dynamics in Reinforcement Fine-Tuning of Large Language
    Models", arXiv 2602.03392).

    With the probability p of a token and the entropy H of its distribution, S = p (H + log p) is negative for a token
    that is less likely than the typical one; a negative advantage makes it less likely still, which lowers the entropy.
    Tokens with a negative advantage are left out where S is more than `deviations` standard deviations below its mean
    over all K tokens.

    Args:
        logprobs: [K] of all targets of a step, by the old policy.
        entropies: [K] in nats.
        advantages: [K]
        deviations: the bound (the paper's mu).
    """
    signal = logprobs.double().exp() * (entropies.double() + logprobs.double())
    centered = signal - signal.mean()
    bound = deviations * signal.std(correction=0)
    return (advantages >= 0) | (centered >= -bound)
