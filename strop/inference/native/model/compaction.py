"""Compaction of tables: the last rows fill the gaps of removed ones, so that rows in use stay contiguous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from strop.transfers import Positions
from strop.types import BoolArray, IndexArray


@dataclass(frozen=True, slots=True)
class Compaction:
    """Moves of rows after some of `before` rows were removed; the table is then cut to `after` rows."""

    before: int
    """Number of rows before."""
    after: int
    """Number of rows after."""
    targets: Positions
    """[m] Removed rows below `after`."""
    sources: Positions
    """[m] Remaining rows from `after` on, which move to `targets`."""

    def apply(self, tensor: torch.Tensor, dim: int = 0) -> None:
        """Move the rows of a tensor along `dim`, in place; the tensor is not cut."""
        if len(self.targets):
            moved = tensor.index_select(dim, self.sources.on_device)
            tensor.index_copy_(dim, self.targets.on_device, moved)

    def new_indices(self) -> IndexArray:
        """[before] New index of each row; -1 for removed ones."""
        indices = np.full(self.before, -1)
        indices[: self.after] = np.arange(self.after)
        indices[self.targets.on_host] = -1
        indices[self.sources.on_host] = self.targets.on_host
        return indices

    def apply_to_list(self, items: list[Any]) -> None:
        """Move the items of a list, and cut it to `after` items."""
        for target, source in zip(self.targets.on_host, self.sources.on_host, strict=True):
            items[target] = items[source]
        del items[self.after :]


def plan_compaction(removed: BoolArray, device: torch.device) -> Compaction:
    """Plan the moves of tables on a device, for a [before] mask of removed rows."""
    before = len(removed)
    after = before - int(removed.sum())
    targets = np.flatnonzero(removed[:after])
    sources = np.flatnonzero(~removed[after:]) + after
    return Compaction(before, after, Positions.of(targets, device), Positions.of(sources, device))
