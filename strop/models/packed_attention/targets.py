"""Targets of a micro-batch, and the rows of hidden states that predict them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from strop.models.packed_attention.forward import base_model
from strop.models.packed_attention.sequence_parallel import SequenceGroup
from strop.models.packed_attention.tensor_parallel import TensorGroup
from strop.transfers import Positions, to_device
from strop.types import MicroBatch


@dataclass(frozen=True, slots=True)
class TargetRows:
    """N targets: all of a micro-batch, or those of this rank with sequence or tensor parallelism."""

    targets: Tensor
    """[N] int64 Positions of the targets in the micro-batch."""
    rows: Positions
    """[N] Rows of this rank's hidden states that predict them."""
    tokens: int
    """Number of tokens of the micro-batch."""
    groups: tuple[SequenceGroup | TensorGroup, ...]
    """Ranks that have the other targets; empty where this rank has all."""

    @classmethod
    def of(
        cls, micro_batch: MicroBatch, sequence: SequenceGroup | None, tensor: TensorGroup | None = None
    ) -> TargetRows:
        """The targets of this rank of the groups."""
        tokens, first, targets = len(micro_batch.token_ids), 0, micro_batch.targets
        if sequence is not None:
            first, end = sequence.bounds(tokens)
            targets = targets[(targets > first) & (targets <= end)]
        if tensor is not None:
            targets = tensor.share(targets)
        groups = tuple(group for group in (sequence, tensor) if group is not None)
        on_device = to_device(targets, micro_batch.token_ids.device)
        rows = Positions(targets - 1 - first, on_device - 1 - first)
        return cls(on_device, rows, tokens, groups)

    def spread(self, values: Tensor) -> Tensor:
        """[T] Values [N] of all ranks' targets at their positions, and 0 at other tokens."""
        spread = values.new_zeros(self.tokens).index_copy(0, self.targets, values)
        for group in self.groups:
            spread = group.sum(spread)
        return spread


def target_rows(model: nn.Module, micro_batch: MicroBatch) -> TargetRows:
    """The targets whose hidden states `packed_forward` of a model returns on this rank."""
    return TargetRows.of(micro_batch, SequenceGroup.of_model(base_model(model)))


def head_rows(model: nn.Module, micro_batch: MicroBatch) -> TargetRows:
    """The targets whose log-probs this rank computes."""
    base = base_model(model)
    return TargetRows.of(micro_batch, SequenceGroup.of_model(base), TensorGroup.of_model(base))
