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
    signal = _signal(logprobs, entropies)
    centered = signal - signal.mean()
    bound = deviations * signal.std(correction=0)
    return (advantages >= 0) | (centered >= -bound)


def clip_v(
    logprobs: torch.Tensor,
    entropies: torch.Tensor,
    expected: torch.Tensor,
    advantages: torch.Tensor,
    *,
    deviations: float,
    max_fraction: float | None,
) -> torch.Tensor:
    """[K] bool: the tokens that Clip_V keeps (arXiv 2602.03392), which compares S = p (H + log p) of a token with the
    expectation of S over the vocabulary, sum of p^2 (H + log p), instead of the mean over tokens.

    Tokens without a positive advantage are left out where S is more than `deviations` standard deviations of this
    difference below its expectation. As in Trinity-RFT, of more than `max_fraction` of the K tokens, at least 1, only
    those of negative advantage with the largest differences are left out.

    Args:
        logprobs: [K] of all targets of a step, by the old policy.
        entropies: [K] in nats.
        expected: [K] expectation of S at each target.
        advantages: [K]
        deviations: the bound (the paper's mu).
        max_fraction: maximum fraction of left out tokens; None for no maximum.
    """
    difference = expected.double() - _signal(logprobs, entropies)
    bound = deviations * difference.std(correction=0)
    if float(bound) == 0:
        return torch.ones_like(advantages, dtype=torch.bool)
    dropped = (advantages <= 0) & (difference > bound)
    punished = dropped & (advantages < 0)
    if max_fraction is None or int(dropped.sum()) <= max_fraction * len(dropped):
        return ~dropped
    limit = max(int(max_fraction * len(dropped)), 1)
    if int(punished.sum()) > limit:
        largest = difference.masked_fill(~punished, -torch.inf).topk(limit).indices
        dropped = dropped & ~punished
        dropped[largest] = True
    return ~dropped


def _signal(logprobs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    """[K] float64: S = p (H + log p)."""
    return logprobs.double().exp() * (entropies.double() + logprobs.double())
