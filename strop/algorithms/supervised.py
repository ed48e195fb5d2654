"""Learning from given answers: the quickstart's warm-up, and supervised fine-tuning."""

from __future__ import annotations

from strop.algorithms.reduce import Targets
from strop.types import GlobalCounts, LossOutput, MicroBatch, TokenOutputs


def supervised_loss(micro_batch: MicroBatch, outputs: TokenOutputs, counts: GlobalCounts) -> LossOutput:
    """Cross entropy in nats, averaged over all targets of the update; a `LossFn`."""
    targets = Targets.of(micro_batch)
    loss = -(targets.weight * targets.take(outputs.logprobs)).sum() / counts.tokens
    return LossOutput(loss, {})
