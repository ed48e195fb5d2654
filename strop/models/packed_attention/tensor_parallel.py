"""Tensor parallelism (Megatron-LM, arXiv 1909.08053) of a model's forward pass: ranks that hold parts of its matrices.

Hidden states between layers are equal on all ranks of a group. The positions that the language-model head is applied to
are divided over them, with the whole head gathered, so that every divergence over the vocabulary works as in one
process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from strop.models.packed_attention.model_ranks import ModelRanks
from strop.types import IndexArray


@dataclass(frozen=True, slots=True)
class TensorGroup(ModelRanks):
    """Ranks that get the same micro-batches and divide each layer's matrices; each rank calls the same methods."""

    def share(self, positions: IndexArray) -> IndexArray:
        """This rank's part of positions [N], about N / size of them."""
        return np.array_split(positions, self.size)[self.rank]

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
