"""Groups of ranks that get the same micro-batches and divide the work of a model's forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from transformers import PreTrainedModel


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
