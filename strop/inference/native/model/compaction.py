"""Compaction of tables: the last rows fill the gaps of removed ones, so that rows in use stay contiguous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Compaction:
    """Moves of rows after some of `before` rows were removed; the table is then cut to `after` rows."""

    before: int
    """Number of rows before."""
    after: int
    """Number of rows after."""
    targets: torch.Tensor
    """[m] int64 Removed rows below `after`."""
    sources: torch.Tensor
    """[m] int64 Remaining rows from `after` on, which move to `targets`."""

    def apply(self, tensor: torch.Tensor, dim: int = 0) -> None:
        """Move the rows of a tensor along `dim`, in place; the tensor is not cut."""
        if len(self.targets):
            tensor.index_copy_(dim, self.targets, tensor.index_select(dim, self.sources))

    def new_indices(self) -> torch.Tensor:
        """[before] int64 New index of each row; -1 for removed ones."""
        indices = torch.full((self.before,), -1, dtype=torch.int64, device=self.targets.device)
        indices[: self.after] = torch.arange(self.after, device=self.targets.device)
        indices[self.targets] = -1
        indices[self.sources] = self.targets
        return indices

    def apply_to_list(self, items: list[Any]) -> None:
        """Move the items of a list, and cut it to `after` items."""
        for target, source in zip(self.targets.tolist(), self.sources.tolist(), strict=True):
            items[target] = items[source]
        del items[self.after :]


def plan_compaction(removed: torch.Tensor) -> Compaction:
    """Plan the moves for a [before] bool mask of removed rows."""
    before = len(removed)
    after = before - int(removed.sum())
    targets = removed[:after].nonzero()[:, 0]
    sources = (~removed[after:]).nonzero()[:, 0] + after
    return Compaction(before, after, targets, sources)
