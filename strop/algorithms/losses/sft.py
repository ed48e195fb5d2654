"""Losses on demonstrations: supervised fine-tuning, and its combination with rollouts (mix)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
import torch

from strop.algorithms.losses.aggregation import TargetTokens
from strop.config.schema.algorithm import TokenWeight
from strop.protocols import LossFn
from strop.types import GlobalCounts, LossOutput, MicroBatch, SegmentRole, TokenOutputs


@dataclass(frozen=True, slots=True)
class SftLoss:
    """Cross entropy in nats, averaged over all targets of the update; a `LossFn`.

    By default every token has the same weight, as in TRL's and verl's SFT trainers; but the mean is over the update and
    not over each micro-batch, so that the size of micro-batches changes nothing.
    """

    token_weight: TokenWeight = "none"

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """`counts` are those of the update."""
        loss = _cross_entropy(micro_batch, outputs, self.token_weight) / counts.tokens
        return LossOutput(loss, {"sft_loss": loss.detach()})


@dataclass(frozen=True, slots=True)
class MixedLoss:
    """Rollouts and expert demonstrations in one update; a `LossFn`.

        (1 - mu) * loss of the rollouts + mu * cross entropy of the expert demonstrations

    as in Trinity-RFT's `mix`. Each term is divided by its own counts, so that the number of demonstrations
    does not change their weight. The metrics are those of the terms before the factors with mu.
    """

    mu: float
    rollout_loss: LossFn
    token_weight: TokenWeight = "none"
    """Weight of each token of a demonstration."""

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """`counts.expert_tokens` must be set where there are demonstrations."""
        learned = self.rollout_loss(only_role("rl", micro_batch), outputs, counts)
        expert = only_role("sft", micro_batch)
        imitated = _cross_entropy(expert, outputs, self.token_weight) / max(1, counts.expert_tokens)
        loss = (1 - self.mu) * learned.loss + self.mu * imitated
        return LossOutput(loss, {**learned.metrics, "sft_loss": imitated.detach()})


def _cross_entropy(micro_batch: MicroBatch, outputs: TokenOutputs, token_weight: TokenWeight) -> torch.Tensor:
    """[] Weighted sum of the cross entropy over targets, in nats.

    With the probability p of a target, without a gradient, its weight is 1, p (dynamic fine-tuning, arXiv 2508.05629,
    equation 9) or p (1 - p) (CHORD's phi, arXiv 2508.11408).
    """
    targets = TargetTokens.of(micro_batch)
    logprobs = targets.take(outputs.logprobs)
    probability = logprobs.detach().exp()
    match token_weight:
        case "none":
            weight = targets.weight
        case "p":
            weight = targets.weight * probability
        case "p_one_minus_p":
            weight = targets.weight * probability * (1 - probability)
        case _:
            assert_never(token_weight)
    return -(weight * logprobs).sum()


def only_role(role: SegmentRole, micro_batch: MicroBatch) -> MicroBatch:
    """The micro-batch with only the targets of one role."""
    chosen = np.array([each == role for each in micro_batch.role])
    targets = micro_batch.targets
    return replace(micro_batch, targets=targets[chosen[micro_batch.segment_numbers()[targets]]])
