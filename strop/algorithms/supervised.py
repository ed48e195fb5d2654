"""Learning from given answers: supervised fine-tuning, and an expert's answers beside rollouts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from strop.algorithms.reduce import Targets
from strop.protocols import LossFn
from strop.types import GlobalCounts, LossOutput, MicroBatch, Role, TokenOutputs


def supervised_loss(micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
    """Cross entropy in nats, averaged over all targets of the update; a `LossFn`.

    Every token counts alike, whichever answer it is in, as in TRL's SFTTrainer and verl's; but the
    mean is over the update and not over each micro-batch, so that the cutting changes nothing.
    """
    loss = _cross_entropy(micro_batch, outputs) / counts.tokens
    return LossOutput(loss, {"sft_loss": loss.detach()})


@dataclass(frozen=True, slots=True)
class MixedLoss:
    """Rollouts and an expert's answers in one update; a `LossFn`.

        (1 - mu) * the rollouts' loss + mu * the cross entropy of the expert's answers

    as Trinity-RFT's `mix`: each part is divided by its own counts, so that how many expert rows there
    are does not weigh, only how well their mean is known. The parts' metrics are those before mu.
    """

    mu: float
    rollouts: LossFn

    def __call__(self, micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
        """Needs `counts.expert_tokens` where there are expert answers."""
        learned = self.rollouts(_only("rl", micro_batch), outputs, counts)
        expert = _only("sft", micro_batch)
        imitated = _cross_entropy(expert, outputs) / max(1, counts.expert_tokens)
        loss = (1 - self.mu) * learned.loss + self.mu * imitated
        return LossOutput(loss, {**learned.metrics, "sft_loss": imitated.detach()})


def _cross_entropy(micro_batch: MicroBatch, outputs: TokenOutputs) -> torch.Tensor:
    """[] Summed over the targets, in nats."""
    targets = Targets.of(micro_batch)
    return -(targets.weight * targets.take(outputs.logprobs)).sum()


def _only(role: Role, micro_batch: MicroBatch) -> MicroBatch:
    """The same micro-batch, in which only the targets of this role are targets."""
    chosen = torch.tensor([each == role for each in micro_batch.role], device=micro_batch.loss_mask.device)
    return replace(micro_batch, loss_mask=micro_batch.loss_mask & chosen[micro_batch.segment_of_token()])
