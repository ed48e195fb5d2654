"""Targets of a micro-batch, and the rows of hidden states that predict them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from strop.models.packed_attention.forward import base_model
from strop.models.packed_attention.sequence_parallel import SequenceGroup, sequence_group
from strop.types import MicroBatch


@dataclass(frozen=True, slots=True)
class TargetRows:
    """N targets: all of a micro-batch, or with sequence parallelism those whose hidden states this rank has."""

    targets: Tensor
    """[N] int64 Positions of the targets in the micro-batch."""
    rows: Tensor
    """[N] int64 Rows of this rank's hidden states that predict them."""
    tokens: int
    """Number of tokens of the micro-batch."""
    group: SequenceGroup | None
    """Ranks that have the other targets; None where this rank has all."""

    @classmethod
    def of(cls, micro_batch: MicroBatch, group: SequenceGroup | None) -> TargetRows:
        """The targets of this rank of a group."""
        tokens = len(micro_batch.token_ids)
        targets = micro_batch.loss_mask.nonzero()[:, 0]
        if group is None:
            return cls(targets, targets - 1, tokens, None)
        first, end = group.bounds(tokens)
        own = targets[(targets > first) & (targets <= end)]
        return cls(own, own - 1 - first, tokens, group)

    def spread(self, values: Tensor) -> Tensor:
        """[T] Values [N] of all ranks' targets at their positions, and 0 at other tokens."""
        spread = values.new_zeros(self.tokens).index_copy(0, self.targets, values)
        return spread if self.group is None else self.group.sum(spread)


def target_rows(model: nn.Module, micro_batch: MicroBatch) -> TargetRows:
    """The targets whose hidden states `packed_forward` of a model returns on this rank."""
    return TargetRows.of(micro_batch, sequence_group(base_model(model)))
