"""Aggregation of token losses to one number, as weighted sums; importance weights between sampler and trainer, and
rejection of tokens that differ too much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch

from strop.algorithms.kl import bound_exponent, bound_log_ratio
from strop.config.schema.policy_gradient import Aggregation
from strop.config.schema.policy_loss import ImportanceCorrectionConfig, RejectionRuleConfig
from strop.transfers import to_device
from strop.types import GlobalCounts, MicroBatch


@dataclass(frozen=True, slots=True)
class TargetTokens:
    """The K targets of a micro-batch.

    Values at other tokens are never selected, so they have no influence, even if they are NaN.
    """

    index: torch.Tensor
    """[K] int64 Positions of the targets in the micro-batch."""
    segment: torch.Tensor
    """[K] int64 Segment, and so the sequence, of each target."""
    tokens: torch.Tensor
    """[K] int64 Number of targets in the sequence of each target."""
    weight: torch.Tensor
    """[K] float32 Loss weight of the sequence of each target."""
    num_segments: int
    """S Number of segments."""
    selected: torch.Tensor | None = None
    """[K] bool: targets that the policy loss treats differently; None where the update has no selection."""

    @classmethod
    def of(cls, micro_batch: MicroBatch) -> TargetTokens:
        """The targets of a micro-batch, in its order."""
        segments = micro_batch.segment_numbers()[micro_batch.targets]
        counts = np.bincount(segments, minlength=micro_batch.num_segments)[segments]
        planned = to_device(np.stack([micro_batch.targets, segments, counts]), micro_batch.token_ids.device)
        index, segment, tokens = planned.unbind()
        weight = micro_batch.weight.index_select(0, segment)
        selected = None if micro_batch.selected is None else micro_batch.selected.index_select(0, index)
        return cls(index, segment, tokens, weight, micro_batch.num_segments, selected)

    @classmethod
    def concatenated(cls, tokens: torch.Tensor) -> TargetTokens:
        """The targets of S sequences with `tokens` [S] targets each, end to end; every loss weight is 1."""
        segment = torch.arange(len(tokens), device=tokens.device).repeat_interleave(tokens)
        index = torch.arange(len(segment), device=tokens.device)
        return cls(
            index, segment, tokens[segment], torch.ones_like(segment, dtype=torch.float32), len(tokens)
        )

    def take(self, values: torch.Tensor) -> torch.Tensor:
        """[K] from [T]: the values at targets."""
        return values.index_select(0, self.index)

    def sequence_sum(self, values: torch.Tensor) -> torch.Tensor:
        """[K] from [K]: for each target, the sum over its sequence, which is never split over micro-batches."""
        return values.new_zeros(self.num_segments).index_add(0, self.segment, values)[self.segment]


def token_weights(
    targets: TargetTokens,
    aggregation: Aggregation,
    counts: GlobalCounts,
    *,
    max_response_tokens: int,
    kept: torch.Tensor | None = None,
) -> torch.Tensor:
    """[K] Weights of the targets' losses; the weighted sum over all micro-batches is the aggregated loss.

    With w the sequence's weight, and the counts of the whole update:

        token-mean               w / counts.tokens                                 DAPO (arXiv 2503.14476)
        seq-mean-token-sum       w / counts.sequences
        seq-mean-token-mean      w / counts.sequences / targets of this sequence   GRPO (arXiv 2402.03300)
        seq-mean-token-sum-norm  w / counts.sequences / max_response_tokens        Dr. GRPO (arXiv 2503.20783)

    `max_response_tokens` is the configured limit, a constant as in Dr. GRPO. verl (June 2025) divides by the
    padded length of the batch's responses, which is that limit where it pads to it, and does not divide by
    the number of sequences. verl also averages over micro-batches, so that its loss depends on their size;
    Strop's does not.

    `kept` [K] bool is False for rejected targets: they have the weight 0 and do not count as targets of their
    sequence. The update's count of targets is without them where they are known before it
    (`counts.kept_tokens`); its count of sequences is always with them. Both are as in verl.
    """
    weight, tokens = targets.weight, targets.tokens
    if kept is not None:
        weight = weight * kept
        tokens = targets.sequence_sum(kept.to(weight.dtype)).clamp(min=1)
    match aggregation:
        case "token-mean":
            return weight / (counts.tokens if counts.kept_tokens is None else max(counts.kept_tokens, 1))
        case "seq-mean-token-sum":
            return weight / counts.sequences
        case "seq-mean-token-mean":
            return weight / (counts.sequences * tokens)
        case "seq-mean-token-sum-norm":
            return weight / (counts.sequences * max_response_tokens)
        case _:
            assert_never(aggregation)


@dataclass(frozen=True, slots=True)
class PolicyLossTerms:
    """Surrogate loss of K targets, and where a bound applied."""

    loss: torch.Tensor
    """[K] Losses, with gradient."""
    clipped_low: torch.Tensor
    """[K] bool: True where the ratio is below the lower bound and was clipped to it."""
    clipped_high: torch.Tensor
    """[K] bool: True where the ratio is above the upper bound and was clipped to it."""
    clipped_dual: torch.Tensor
    """[K] bool: True where the ratio is above dual_clip, with a negative advantage, and was clipped to it."""

    @classmethod
    def unbounded(cls, loss: torch.Tensor) -> PolicyLossTerms:
        """[K] losses to which no bound applies."""
        nowhere = torch.zeros_like(loss, dtype=torch.bool)
        return cls(loss, nowhere, nowhere, nowhere)


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
