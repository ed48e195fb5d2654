"""Rejection of tokens and responses whose probabilities differ too much between trainer and sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

import torch

from strop.algorithms.log_ratios import bound_exponent
from strop.algorithms.losses.aggregation import TargetTokens
from strop.config.schema.policy_loss import RejectionRuleConfig


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
