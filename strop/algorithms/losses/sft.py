"""Losses on demonstrations: supervised fine-tuning, and its combination with rollouts (mix)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from strop.algorithms.losses.aggregation import TargetTokens
from strop.protocols import LossFn
from strop.types import GlobalCounts, LossOutput, MicroBatch, SegmentRole, TokenOutputs


def sft_loss(micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
    """Cross entropy in nats, averaged over all targets of the update; a `LossFn`.

    Every token has the same weight, as in TRL's and verl's SFT trainers; but the mean is over the update and
    not over each micro-batch, so that the size of micro-batches changes nothing.
    """
    loss = _cross_entropy(micro_batch, outputs) / counts.tokens
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
    weight_by_probability: bool = False
    """Whether each token of a demonstration has the weight p (1 - p) of its probability p, without a gradient
    (CHORD's phi, arXiv 2508.11408)."""

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """`counts.expert_tokens` must be set where there are demonstrations."""
        learned = self.rollout_loss(_only("rl", micro_batch), outputs, counts)
        expert = _only("sft", micro_batch)
        phi = self.weight_by_probability
        imitated = _cross_entropy(expert, outputs, weight_by_probability=phi) / max(1, counts.expert_tokens)
        loss = (1 - self.mu) * learned.loss + self.mu * imitated
        return LossOutput(loss, {**learned.metrics, "sft_loss": imitated.detach()})


def _cross_entropy(
    micro_batch: MicroBatch, outputs: TokenOutputs, *, weight_by_probability: bool = False
) -> torch.Tensor:
    """[] Sum of the cross entropy over targets, in nats."""
    targets = TargetTokens.of(micro_batch)
    logprobs = targets.take(outputs.logprobs)
    if weight_by_probability:
        probability = logprobs.detach().exp()
        logprobs = probability * (1 - probability) * logprobs
    return -(targets.weight * logprobs).sum()


def _only(role: SegmentRole, micro_batch: MicroBatch) -> MicroBatch:
    """The micro-batch with only the targets of one role."""
    chosen = torch.tensor([each == role for each in micro_batch.role], device=micro_batch.loss_mask.device)
    return replace(micro_batch, loss_mask=micro_batch.loss_mask & chosen[micro_batch.segment_of_token()])
