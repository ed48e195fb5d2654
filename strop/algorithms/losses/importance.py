"""Importance weights between the sampler's and the trainer's policy, which differ slightly."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.algorithms.log_ratios import bound_exponent, bound_log_ratio
from strop.algorithms.losses.aggregation import TargetTokens
from strop.config.schema.policy_loss import ImportanceCorrectionConfig


@dataclass(frozen=True, slots=True)
class ImportanceWeights:
    """Factors on the policy loss of K targets."""

    weights: torch.Tensor
    """[K] Importance weights, without gradient."""
    capped: torch.Tensor
    """[K] bool: True where the weight is outside the bounds, and was truncated or set to 0."""

    def mean(self, targets: TargetTokens, config: ImportanceCorrectionConfig) -> float:
        """Mean weight of the targets at level `token`, of the sequences at the other levels; 1 where all are 0."""
        counts = torch.ones_like(self.weights) if config.level == "token" else 1 / targets.tokens
        mean = float((self.weights * counts).sum() / counts.sum())
        return mean if mean > _NO_WEIGHT else 1.0


_NO_WEIGHT = 1e-8


def compute_importance_weights(
    trainer_logprobs: torch.Tensor,
    sampler_logprobs: torch.Tensor,
    targets: TargetTokens,
    config: ImportanceCorrectionConfig,
) -> ImportanceWeights:
    """Truncated importance sampling: min(pi_trainer / pi_sampler, cap); with `floor`, the ratio inside [floor, cap]
    and 0 outside (IcePop; Ling team, arXiv 2510.18855).

    Per token (Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training",
    2025): slightly biased, low variance. Per sequence, the weight is the product over the sequence's targets
    (truncated as in Ionides, 2008): unbiased except for the cap, high variance; `geometric` is its root of the
    number of targets. The weights are not normalized.

    Args:
        trainer_logprobs: [K] under the trainer's weights.
        sampler_logprobs: [K] under the sampling distribution.
    """
    difference = bound_log_ratio(trainer_logprobs.detach() - sampler_logprobs)
    if config.level != "token":
        difference = targets.sequence_sum(difference)
    if config.level == "geometric":
        difference = difference / targets.tokens
    ratio = bound_exponent(difference).exp()
    if config.floor is None:
        return ImportanceWeights(ratio.clamp(max=config.cap), ratio > config.cap)
    outside = (ratio < config.floor) | (ratio > config.cap)
    return ImportanceWeights(ratio.masked_fill(outside, 0.0), outside)
