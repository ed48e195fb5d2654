"""Keys and values of what is under way: a prompt's once for all its rows, a row's own tokens beside it."""

from __future__ import annotations

from typing import Any

import torch

from strop.inference.native.architecture import Architecture
from strop.inference.native.moves import Moves

WIDTH_STEP = 16
"""Widths are multiples of this, so that matrix shapes, and the kernels made for them, seldom change."""

FIRST_WIDTH = 64


def round_up(tokens: int) -> int:
    """The next width that fits so many tokens."""
    return -(-tokens // WIDTH_STEP) * WIDTH_STEP


class KvStore:
    """`count` places of up to `width` tokens; per layer one tensor [2, places, kv_heads, width, head_dim].

    Memory grows with what is really stored, its width by doubling, and is given back by `clear`; while it
    grows, one layer is held twice. What is not in use is zero or old: finite numbers, kept out by a mask.
    """

    def __init__(self, arch: Architecture, device: torch.device, dtype: torch.dtype) -> None:
        self._arch = arch
        self._kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.clear()

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self.count = 0
        self._places = 0
        self._width = 0
        self._layers: list[torch.Tensor] = [torch.empty(0) for _ in range(self._arch.layers)]

    def layer(self, number: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values in use: [count, kv_heads, width, head_dim] each."""
        keys_values = self._layers[number][:, : self.count, :, :width]
        return keys_values[0], keys_values[1]

    def reserve(self, places: int, width: int, most: int) -> None:
        """Make room for `places` in all, each `width` tokens wide now and `most` at last."""
        if places <= self._places and width <= self._width:
            return
        ahead = max(FIRST_WIDTH, 2 * self._width) if width > self._width else self._width
        new_width = max(width, min(ahead, most))
        kept_width = min(self._width, new_width)
        for number, old in enumerate(self._layers):
            new = torch.zeros(2, places, self._arch.kv_heads, new_width, self._arch.head_dim, **self._kind)
            if self.count:
                new[:, : self.count, :, :kept_width] = old[:, : self.count, :, :kept_width]
            self._layers[number] = new
        self._places, self._width = places, new_width

    def drop(self, moves: Moves) -> None:
        """Let some places go."""
        self.count = moves.after
        for tensor in self._layers:
            moves.apply(tensor, dim=1)
