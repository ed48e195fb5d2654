"""Low-rank adapters that the native decoder applies itself, so that no merged copy of the weights exists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from strop.inference.native.model.weights import StackedWeight
from strop.protocols import LowRankUpdate


@dataclass(frozen=True, slots=True)
class _RowUpdate:
    """Update of some rows of a stacked weight."""

    first: int
    rows: int
    update: LowRankUpdate


_NONE: Mapping[str, _RowUpdate] = {}


class AppliedAdapter:
    """Updates of stacked weights. Their tensors are the trainer's own, which it changes in place."""

    def __init__(self) -> None:
        self._updates: dict[StackedWeight, dict[str, _RowUpdate]] = {}

    def apply(self, matrices: Iterable[StackedWeight], adapter: Mapping[str, LowRankUpdate]) -> None:
        """Apply updates, by the name of the weight, to complete stacked weights."""
        for matrix in matrices:
            first = 0
            for name in matrix.names:
                rows = len(matrix.part(name))
                if name in adapter:
                    self._updates.setdefault(matrix, {})[name] = _RowUpdate(first, rows, adapter[name])
                first += rows

    def dropped_for(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights, which have the adapter merged: an update ends with the weight that it is merged into."""
        for name, weight in weights:
            for updates in self._updates.values():
                updates.pop(name, None)
            yield name, weight

    def tensors(self) -> Iterator[torch.Tensor]:
        """Both matrices of each update."""
        for updates in self._updates.values():
            for each in updates.values():
                yield from (each.update.a, each.update.b)

    def add_to(self, output: torch.Tensor, x: torch.Tensor, weight: StackedWeight) -> torch.Tensor:
        """Add the updates of a weight to its product with `x` [n, in], in place; rounded as in training."""
        for each in self._updates.get(weight, _NONE).values():
            low = F.linear(x, each.update.a)
            rows = output[:, each.first : each.first + each.rows]
            rows.addmm_(low, each.update.b.T, alpha=each.update.scale)
        return output


def is_applicable(adapter: Mapping[str, LowRankUpdate], dtype: torch.dtype) -> bool:
    """Whether the decoder can apply the adapter: it adapts layers only, and has the dtype of the computation."""
    return all(
        name.startswith("model.layers.") and update.a.dtype == dtype for name, update in adapter.items()
    )
