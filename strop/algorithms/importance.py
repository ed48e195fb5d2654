"""Importance sampling between the sampler and the trainer, which are never quite the same policy."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.algorithms.reduce import Targets
from strop.config.schema.algorithm import ImportanceCorrection


@dataclass(frozen=True, slots=True)
class Correction:
    """What each of K targets' policy loss is multiplied with."""

    weights: torch.Tensor
    """[K] without gradient."""
    capped: torch.Tensor
    """[K] bool: the cap is in force."""


def correct(
    trainer_logprobs: torch.Tensor,
    sampler_logprobs: torch.Tensor,
    targets: Targets,
    config: ImportanceCorrection,
) -> Correction:
    """Truncated importance sampling: min(pi_trainer / pi_sampler, cap).

    Per token (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    2025): a little biased, of low variance. Per sequence the weight is the product over the
    sequence's targets (truncated as in Ionides, 2008): unbiased but for the cap, of high variance.

    Args:
        trainer_logprobs: [K] by the trainer's weights at the start of the step.
        sampler_logprobs: [K] under the distribution that was really sampled from.
    """
    difference = trainer_logprobs.detach() - sampler_logprobs
    if config.level == "sequence":
        difference = targets.sequence_sum(difference)
    weights = difference.exp()
    return Correction(weights.clamp(max=config.cap), weights > config.cap)
