"""Importance weights between the sampler's and the trainer's policy, and rejection of tokens that differ too much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import torch

from strop.algorithms.kl import bound_exponent, bound_log_ratio
from strop.algorithms.losses.aggregation import TargetTokens
from strop.config.schema.policy_loss import ImportanceCorrectionConfig, RejectionRuleConfig


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


def kept_targets(
    trainer_logprobs: torch.Tensor,
    sampler_logprobs: torch.Tensor,
    targets: TargetTokens,
    rules: Sequence[RejectionRuleConfig],
) -> torch.Tensor:
    """[K] bool: False for targets that fail one of the rules, alone or with their whole sequence.

    With r = pi_trainer / pi_sampler of a target, a rule bounds log r (k1), (log r)^2 / 2 (k2) or r - 1 - log r
    (k3; Schulman, joschu.net/blog/kl-approx.html): per target, or its sum, mean or maximum over the sequence's
    targets. The mean of k1 is the filter by geometric mean of Liu et al., "When Speed Kills Stability:
    Demystifying RL Collapse from the Training-Inference Mismatch", 2025.

    Args:
        trainer_logprobs: [K] under the trainer's weights.
        sampler_logprobs: [K] under the sampling distribution.
    """
    log_ratio = bound_exponent(trainer_logprobs.detach() - sampler_logprobs)
    kept = torch.ones_like(log_ratio, dtype=torch.bool)
    for rule in rules:
        kept &= _passes(rule, _measure(rule, log_ratio), targets)
    return kept


def _measure(rule: RejectionRuleConfig, log_ratio: torch.Tensor) -> torch.Tensor:
    match rule.estimator:
        case "k1":
            return log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return log_ratio.expm1() - log_ratio
        case _:
            assert_never(rule.estimator)


def _passes(rule: RejectionRuleConfig, measure: torch.Tensor, targets: TargetTokens) -> torch.Tensor:
    match rule.over:
        case "token":
            return _within(rule, measure)
        case "sum":
            return _within(rule, targets.sequence_sum(measure))
        case "mean":
            return _within(rule, targets.sequence_sum(measure) / targets.tokens)
        case "max":
            return targets.sequence_sum((~_within(rule, measure)).float()) == 0
        case _:
            assert_never(rule.over)


def _within(rule: RejectionRuleConfig, measure: torch.Tensor) -> torch.Tensor:
    low = -math.inf if rule.low is None else math.log(rule.low)
    high = math.inf if rule.high is None else rule.high
    if rule.estimator == "k1":
        high = math.log(high)
    return (measure >= low) & (measure <= high)
