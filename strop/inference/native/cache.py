"""Keys and values of what is under way: a prompt's once for all its rows, a row's own tokens beside it."""

from __future__ import annotations

from typing import Any

import torch

from strop.inference.native.architecture import Architecture
from strop.inference.native.moves import Moves


def stored_width(tokens: int) -> int:
    """The width at which so many tokens are stored: up to an eighth more, in steps of 16 or a power of two.

    Widths then change seldom: a change copies the store, and makes oneDNN build new kernels.
    """
    step = 1 << max(4, tokens.bit_length() - 4)
    return -(-tokens // step) * step


class KvStore:
    """`count` places, all `width` tokens wide; per layer one tensor [2, places, kv_heads, width, head_dim].

    Matrix products over keys that lie apart would copy them in every step, so the store is as wide as what is
    in it and no wider. While its size changes, one layer is held twice. Tokens beyond a place's own are
    zero or old: finite numbers, kept out by a mask.
    """

    def __init__(self, arch: Architecture, device: torch.device, dtype: torch.dtype) -> None:
        self._arch = arch
        self._kind: dict[str, Any] = {"device": device, "dtype": dtype}
        self.clear()

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self.count = 0
        self.width = 0
        self._layers = [self._zeros(0, 0) for _ in range(self._arch.layers)]

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values in use: [count, kv_heads, width, head_dim] each."""
        keys_values = self._layers[number][:, : self.count]
        return keys_values[0], keys_values[1]

    def resize(self, count: int, tokens: int) -> None:
        """Hold `count` places, new ones at the end, wide enough for `tokens`, which is all that is in use."""
        width = stored_width(tokens)
        if width != self.width or count > self._layers[0].shape[1]:
            kept = (slice(None), slice(min(count, self.count)), slice(None), slice(min(width, self.width)))
            for number, old in enumerate(self._layers):
                new = self._zeros(count, width)
                new[kept] = old[kept]
                self._layers[number] = new
        self.count, self.width = count, width

    def drop(self, moves: Moves) -> None:
        """Let some places go."""
        self.count = moves.after
        for tensor in self._layers:
            moves.apply(tensor, dim=1)

    def _zeros(self, places: int, width: int) -> torch.Tensor:
        return torch.zeros(2, places, self._arch.kv_heads, width, self._arch.head_dim, **self._kind)
