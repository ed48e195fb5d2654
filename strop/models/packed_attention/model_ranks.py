"""Groups of ranks that get the same micro-batches and divide the work of a model's forward pass.

Sequence parallelism (Ulysses, arXiv 2309.14509): each rank of a group holds a part of a micro-batch's tokens. All
layers but attention work on a rank's own tokens. Around attention, an all-to-all exchanges tokens for heads, so that
each rank attends with all tokens of some heads; segments and shared prefixes are those of the whole micro-batch.

Tensor parallelism (Megatron-LM, arXiv 1909.08053): each rank of a group holds parts of a model's matrices. Hidden
states between layers are equal on all ranks. The positions that the language-model head is applied to are divided
over them, with the whole head gathered, so that every divergence over the vocabulary works as in one process.

Dimensions, in addition to those of `strop.types`: n ranks of the group, t tokens of each, n t >= T with padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel

from strop.types import IndexArray


@dataclass(frozen=True, slots=True)
class ModelRanks:
    """Ranks that get the same micro-batches; each rank calls the same methods.

    A model has at most one object of each subclass.
    """

    group: ProcessGroup
    rank: int
    """This rank's number in the group."""
    size: int

    @classmethod
    def of(cls, group: ProcessGroup) -> Self:
        """The ranks of a process group."""
        return cls(group, distributed.get_rank(group), distributed.get_world_size(group))

    @classmethod
    def of_model(cls, base: PreTrainedModel) -> Self | None:
        """The ranks of this class that divide a model; None for none."""
        ranks: Self | None = getattr(base, cls._attribute(), None)
        return ranks

    def set_on(self, base: PreTrainedModel) -> None:
        """Set the ranks that divide a model."""
        setattr(base, self._attribute(), self)

    def sum(self, values: Tensor) -> Tensor:
        """The sum of the ranks' values, each of which is nonzero on one rank only.

        Every rank computes the same loss of the sum, so the gradient passes through unchanged.
        """
        total: Tensor = _Sum.apply(values, self.group)  # type: ignore[no-untyped-call]
        return total

    @classmethod
    def _attribute(cls) -> str:
        return f"strop_{cls.__name__}"


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: ProcessGroup) -> Tensor:
        total = values.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


@dataclass(frozen=True, slots=True)
class SequenceGroup(ModelRanks):
    """Ranks that get the same micro-batches and divide their tokens; each rank calls the same methods."""

    def padding(self, tokens: int) -> int:
        """Number of tokens that are added so that every rank has equally many."""
        return -tokens % self.size

    def bounds(self, tokens: int) -> tuple[int, int]:
        """First token and end of this rank's part; the end may be after the last token."""
        own = (tokens + self.padding(tokens)) // self.size
        return self.rank * own, (self.rank + 1) * own

    def share(self, values: Tensor, dim: int = -1) -> Tensor:
        """[..., t, ...] This rank's part of [..., T, ...], padded with zeros."""
        first, end = self.bounds(values.shape[dim])
        after_dim = [0, 0] * (values.dim() - 1 - dim % values.dim())
        padded = nn.functional.pad(values, [*after_dim, 0, self.padding(values.shape[dim])])
        return padded.narrow(dim, first, end - first)

    def gather(self, values: Tensor, tokens: int) -> Tensor:
        """[T, ...] The values of all ranks, from [t, ...]; the gradient is that of this rank's part."""
        first, end = self.bounds(tokens)
        after_dim = [0, 0] * (values.dim() - 1)
        padded = nn.functional.pad(values, [*after_dim, first, tokens + self.padding(tokens) - end])
        return self.sum(padded)[:tokens]

    def to_heads(self, tokens: Tensor) -> Tensor:
        """[n t, H / n, D] All tokens of some heads, from [t, H, D]: own tokens of all heads.

        Keys with fewer heads than ranks are repeated.
        """
        repeats = math.lcm(tokens.shape[1], self.size) // tokens.shape[1]
        exchanged: Tensor = _Exchange.apply(tokens.repeat_interleave(repeats, 1), self, True)  # type: ignore[no-untyped-call]
        return exchanged

    def to_tokens(self, heads: Tensor) -> Tensor:
        """[t, H, D] Own tokens of all heads, from [n t, H / n, D]."""
        exchanged: Tensor = _Exchange.apply(heads, self, False)  # type: ignore[no-untyped-call]
        return exchanged

    def exchange(self, values: Tensor, *, to_heads: bool) -> Tensor:
        """`to_heads` or `to_tokens`, without a gradient."""
        if to_heads:
            parts = torch.unflatten(values, 1, (self.size, -1)).transpose(0, 1)
        else:
            parts = torch.unflatten(values, 0, (self.size, -1))
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        distributed.all_to_all_single(received, parts, group=self.group)
        return received.flatten(0, 1) if to_heads else received.transpose(0, 1).flatten(1, 2)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: SequenceGroup, to_heads: bool) -> Tensor:
        ctx.group, ctx.to_heads = group, to_heads
        return group.exchange(values, to_heads=to_heads)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.group.exchange(grad, to_heads=not ctx.to_heads), None, None


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
