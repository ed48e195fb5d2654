"""What is made of ratios and advantages: losses per token, to be minimised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch

from strop.algorithms.reduce import Targets
from strop.config.schema.algorithm import (
    CispoLoss,
    ClippedLoss,
    GpgLoss,
    GspoLoss,
    OpmdLoss,
    PolicyLoss,
)


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """The surrogate loss of K targets, and where a bound was in force."""

    loss: torch.Tensor
    """[K] with gradient."""
    clipped_low: torch.Tensor
    """[K] bool: the ratio counts as 1 - clip_low, for it is below."""
    clipped_high: torch.Tensor
    """[K] bool: the ratio counts as 1 + clip_high, for it is above."""
    clipped_dual: torch.Tensor
    """[K] bool: the ratio counts as dual_clip, for it is above under a negative advantage."""


def log_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor | None) -> torch.Tensor:
    """[K] log(new / old). `None` says that the old ones are the current ones: 0, with their gradient."""
    return logprobs - (logprobs.detach() if old_logprobs is None else old_logprobs)


def policy_terms(
    config: PolicyLoss,
    logprobs: torch.Tensor,
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    targets: Targets,
) -> PolicyTerms:
    """The loss that a section means.

    Args:
        logprobs: [K] by the current weights, with gradient.
        ratio: [K] `log_ratio` of these.
        advantages: [K]
    """
    match config:
        case ClippedLoss():
            return clipped(
                ratio, advantages, low=config.clip_low, high=config.clip_high, dual=config.dual_clip
            )
        case GspoLoss():
            sequence = sequence_log_ratio(ratio, targets)
            return clipped(sequence, advantages, low=config.clip_low, high=config.clip_high, dual=None)
        case CispoLoss():
            return cispo(logprobs, ratio, advantages, low=config.clip_low, high=config.clip_high)
        case GpgLoss():
            return plain(logprobs, advantages)
        case OpmdLoss():
            return plain(logprobs, advantages / (1 + config.tau))
        case _:
            assert_never(config)


def clipped(
    log_ratio: torch.Tensor, advantages: torch.Tensor, *, low: float, high: float, dual: float | None
) -> PolicyTerms:
    """PPO's clipped surrogate (arXiv 1707.06347, equation 7), negated.

        max(-A * ratio, -A * clip(ratio, 1 - low, 1 + high))

    Two sides of different width are DAPO's "clip-higher" (arXiv 2503.14476). Where A < 0 the
    surrogate has no upper bound in the ratio; dual clip (arXiv 1912.09729) bounds it:
    min(that, -A * dual). The ratio is not clamped otherwise (verl clamps its log to 20). Where a
    bound is in force there is no gradient.
    """
    ratio = log_ratio.exp()
    lowest, highest = 1 - low, 1 + high
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(lowest, highest))
    gains, loses = advantages > 0, advantages < 0
    bounded = torch.zeros_like(loses)
    if dual is not None:
        bounded = loses & (ratio > dual)
        loss = torch.where(bounded, -advantages * dual, loss)
    return PolicyTerms(loss, loses & (ratio < lowest), gains & (ratio > highest), bounded)


def sequence_log_ratio(log_ratio: torch.Tensor, targets: Targets) -> torch.Tensor:
    """[K] The log of GSPO's ratio: its sequence's mean as a value, its own gradient (arXiv 2507.18071).

    This is the paper's GSPO-token. Where the advantages of a sequence are one number, as GSPO has
    them, value and gradient under `seq-mean-token-mean` are those of its sequence-level objective.
    """
    value = log_ratio.detach()
    return log_ratio - value + targets.sequence_sum(value) / targets.tokens


def cispo(
    logprobs: torch.Tensor,
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    low: float | None,
    high: float,
) -> PolicyTerms:
    """CISPO (MiniMax-M1, arXiv 2506.13585, equation 4), negated.

        -A * stop_gradient(clip(ratio, 1 - low, 1 + high)) * log pi

    Every token keeps its gradient; the bound is on its weight. Without `low` there is no lower
    bound. TRL's `epsilon_high` is the bound itself, 1 + high, and it has no lower one.
    """
    ratio = log_ratio.detach().exp()
    lowest, highest = (0.0 if low is None else 1 - low), 1 + high
    loss = -advantages * ratio.clamp(lowest, highest) * logprobs
    return PolicyTerms(loss, ratio < lowest, ratio > highest, torch.zeros_like(ratio, dtype=torch.bool))


def plain(logprobs: torch.Tensor, advantages: torch.Tensor) -> PolicyTerms:
    """REINFORCE (Williams, 1992), negated: -A * log pi. GPG's and OPMD's loss; nothing bounds it."""
    nowhere = torch.zeros_like(advantages, dtype=torch.bool)
    return PolicyTerms(-advantages * logprobs, nowhere, nowhere, nowhere)
