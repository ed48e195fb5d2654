"""Truncated importance sampling between the sampler's and the trainer's policy, which differ slightly."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.algorithms.log_ratios import bound_exponent, bound_log_ratio
from strop.algorithms.losses.aggregation import TargetTokens
from strop.config.schema.algorithm import ImportanceCorrectionConfig


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Factors on the policy loss of K targets."""

    weights: torch.Tensor
    """[K] Importance weights, without gradient."""
    capped: torch.Tensor
    """[K] bool: True where the weight was capped."""


def compute_importance_weights(
    trainer_logprobs: torch.Tensor,
    sampler_logprobs: torch.Tensor,
    targets: TargetTokens,
    config: ImportanceCorrectionConfig,
) -> ImportanceWeights:
    """Truncated importance sampling: min(pi_trainer / pi_sampler, cap).

    Per token (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    2025): slightly biased, low variance. Per sequence, the weight is the product over the sequence's targets
    (truncated as in Ionides, 2008): unbiased except for the cap, high variance.

    Args:
        trainer_logprobs: [K] under the trainer's weights at the start of the step.
        sampler_logprobs: [K] under the sampling distribution.
    """
    difference = bound_log_ratio(trainer_logprobs.detach() - sampler_logprobs)
    if config.level == "sequence":
        difference = targets.sequence_sum(difference)
    weights = bound_exponent(difference).exp()
    return ImportanceWeights(weights.clamp(max=config.cap), weights > config.cap)
