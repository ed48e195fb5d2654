"""Rows that leave are filled with the last ones, so that those under way always lie side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Moves:
    """Who goes where when some of `before` places are given up. Fewer moves than gaps: the end is cut off."""

    before: int
    after: int
    gaps: torch.Tensor
    """[m] int64 Places below `after` that were given up ..."""
    movers: torch.Tensor
    """[m] int64 ... and those from `after` on, kept, that fill them."""

    def apply(self, tensor: torch.Tensor, dim: int = 0) -> None:
        """Move the rows of a tensor along `dim`, in place."""
        if len(self.gaps):
            tensor.index_copy_(dim, self.gaps, tensor.index_select(dim, self.movers))

    def new_places(self) -> torch.Tensor:
        """[before] int64 Where each goes; -1 for those who leave."""
        places = torch.full((self.before,), -1, dtype=torch.int64, device=self.gaps.device)
        places[: self.after] = torch.arange(self.after, device=self.gaps.device)
        places[self.gaps] = -1
        places[self.movers] = self.gaps
        return places

    def apply_to_list(self, items: list[Any]) -> None:
        """The same for a list, which is then cut."""
        for gap, mover in zip(self.gaps.tolist(), self.movers.tolist(), strict=True):
            items[gap] = items[mover]
        del items[self.after :]


def moves_for(leaving: torch.Tensor) -> Moves:
    """The moves for a [before] bool mask of who leaves."""
    before = len(leaving)
    after = before - int(leaving.sum())
    gaps = leaving[:after].nonzero()[:, 0]
    movers = (~leaving[after:]).nonzero()[:, 0] + after
    return Moves(before, after, gaps, movers)
