"""How the losses of tokens become one number: all four ways are a weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch

from strop.config.schema.algorithm import Aggregation
from strop.types import GlobalCounts, MicroBatch


@dataclass(frozen=True, slots=True)
class Targets:
    """The K targets of a micro-batch.

    What is no target has no influence whatever, not even where it is NaN: it is never selected.
    """

    index: torch.Tensor
    """[K] int64 Where they stand in the micro-batch."""
    segment: torch.Tensor
    """[K] int64 The segment, and so the sequence, that each belongs to."""
    tokens: torch.Tensor
    """[K] int64 How many targets that sequence has."""
    weight: torch.Tensor
    """[K] float32 The sequence's own weight."""
    segments: int
    """S"""

    @classmethod
    def of(cls, micro_batch: MicroBatch) -> Targets:
        """The targets of a micro-batch, in its order."""
        index = micro_batch.loss_mask.nonzero().squeeze(1)
        segment = micro_batch.segment_of_token().index_select(0, index)
        tokens = torch.bincount(segment, minlength=micro_batch.segments).index_select(0, segment)
        weight = micro_batch.weight.index_select(0, segment)
        return cls(index, segment, tokens, weight, micro_batch.segments)

    def take(self, values: torch.Tensor) -> torch.Tensor:
        """[K] of [T]."""
        return values.index_select(0, self.index)

    def sequence_sum(self, values: torch.Tensor) -> torch.Tensor:
        """[K] of [K]: for each target, the sum over its sequence, which no micro-batch cuts."""
        return values.new_zeros(self.segments).index_add(0, self.segment, values)[self.segment]


def token_weights(
    targets: Targets, aggregation: Aggregation, counts: GlobalCounts, *, max_response_tokens: int
) -> torch.Tensor:
    """[K] What each target's loss is multiplied with; the sum over all micro-batches is the aggregation.

    With w the sequence's own weight, and the counts those of the whole update:

        token-mean               w / counts.tokens                                 DAPO (arXiv 2503.14476)
        seq-mean-token-sum       w / counts.sequences
        seq-mean-token-mean      w / counts.sequences / targets of this sequence   GRPO (arXiv 2402.03300)
        seq-mean-token-sum-norm  w / counts.sequences / max_response_tokens        Dr. GRPO (arXiv 2503.20783)

    `max_response_tokens` is the configured limit, a constant, as Dr. GRPO wants it. verl (June
    2025) divides by the padded length of the batch's responses, which is that limit where it pads
    to it, and not by the number of sequences. verl also averages over micro-batches, so that its
    loss depends on how they were cut; here it never does.
    """
    match aggregation:
        case "token-mean":
            return targets.weight / counts.tokens
        case "seq-mean-token-sum":
            return targets.weight / counts.sequences
        case "seq-mean-token-mean":
            return targets.weight / (counts.sequences * targets.tokens)
        case "seq-mean-token-sum-norm":
            return targets.weight / (counts.sequences * max_response_tokens)
        case _:
            assert_never(aggregation)
