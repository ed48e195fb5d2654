"""What is made of ratios and advantages: losses per token, to be minimised."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.config.schema.algorithm import ClippedLoss


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """The surrogate loss of K targets, and where a bound was in force."""

    loss: torch.Tensor
    """[K] with gradient."""
    clipped_low: torch.Tensor
    """[K] bool: no gradient, for the ratio is already below 1 - clip_low."""
    clipped_high: torch.Tensor
    """[K] bool: no gradient, for the ratio is already above 1 + clip_high."""
    clipped_dual: torch.Tensor
    """[K] bool: no gradient, for the ratio is above dual_clip under a negative advantage."""


def log_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor | None) -> torch.Tensor:
    """[K] log(new / old). `None` says that the old ones are the current ones: 0, with their gradient."""
    return logprobs - (logprobs.detach() if old_logprobs is None else old_logprobs)


def clipped(log_ratio: torch.Tensor, advantages: torch.Tensor, config: ClippedLoss) -> PolicyTerms:
    """PPO's clipped surrogate (arXiv 1707.06347, equation 7), negated.

        max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high))

    Two sides of different width are DAPO's "clip-higher" (arXiv 2503.14476). Where A < 0 the
    surrogate has no upper bound in the ratio; dual clip (arXiv 1912.09729) bounds it:
    min(that, -A * dual_clip). The ratio is not clamped otherwise (verl clamps its log to 20).

    Args:
        log_ratio: [K] log of new over old probability.
        advantages: [K]
    """
    ratio = log_ratio.exp()
    low, high = 1 - config.clip_low, 1 + config.clip_high
    plain = -advantages * ratio
    loss = torch.maximum(plain, -advantages * ratio.clamp(low, high))
    gains, loses = advantages > 0, advantages < 0
    dual = torch.zeros_like(loses)
    if config.dual_clip is not None:
        dual = loses & (ratio > config.dual_clip)
        loss = torch.where(dual, -advantages * config.dual_clip, loss)
    return PolicyTerms(loss, loses & (ratio < low), gains & (ratio > high), dual)
