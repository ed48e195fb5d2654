"""Tensor parallelism (Megatron-LM, arXiv 1909.08053) of a model's forward pass: ranks that hold parts of its matrices.

Hidden states between layers are equal on all ranks of a group. The positions that the language-model head is applied to
are divided over them, with the whole head gathered, so that every divergence over the vocabulary works as in one
process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel

from strop.models.packed_attention.sequence_parallel import sum_over_ranks

_GROUP_ATTRIBUTE = "strop_tensor_group"


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Ranks that get the same micro-batches and divide each layer's matrices; each rank calls the same methods."""

    group: ProcessGroup
    rank: int
    """This rank's number in the group."""
    size: int

    @classmethod
    def of(cls, group: ProcessGroup) -> TensorGroup:
        """The ranks of a process group."""
        return cls(group, distributed.get_rank(group), distributed.get_world_size(group))

    def share(self, positions: Tensor) -> Tensor:
        """This rank's part of positions [N], about N / size of them."""
        return positions.tensor_split(self.size)[self.rank]

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the ranks' values, each of which is nonzero on one rank only; see `SequenceGroup.sum`."""
        return sum_over_ranks(values, self.group)

    def divide_use(self, hidden: Tensor) -> Tensor:
        """The same hidden states, of which each rank uses a part; their gradient is the sum over ranks."""
        used: Tensor = _DividedUse.apply(hidden, self.group)  # type: ignore[no-untyped-call]
        return used


class _DividedUse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.contiguous().clone()
        distributed.all_reduce(total, group=ctx.group)
        return total, None


def set_tensor_group(base: PreTrainedModel, group: TensorGroup) -> None:
    """Set the group over which a model's matrices are divided."""
    setattr(base, _GROUP_ATTRIBUTE, group)


def tensor_group(base: PreTrainedModel) -> TensorGroup | None:
    """The group over which a model's matrices are divided; None for a model whose matrices are whole."""
    group: TensorGroup | None = getattr(base, _GROUP_ATTRIBUTE, None)
    return group
