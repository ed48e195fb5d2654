"""KV cache of the native decoder: keys and values in slots of equal width."""

from __future__ import annotations

import torch

from strop.inference.native.model.architecture import DecoderArchitecture
from strop.inference.native.model.compaction import Compaction


def padded_width(tokens: int) -> int:
    """Width of a slot for this many tokens: up to an eighth more, in steps of 16 or a larger power of two.

    Widths then change rarely: a change copies the cache, and makes oneDNN build new kernels.
    """
    step = 1 << max(4, tokens.bit_length() - 4)
    return -(-tokens // step) * step


class KvCache:
    """`count` slots of `width` tokens each; one tensor [2, slots, kv_heads, width, head_dim] per layer.

    Matrix products over strided keys would copy the keys in every step, so the cache is as wide as its
    content and no wider. During a change of size, one layer is held twice. Tokens beyond the length of a
    slot's content are zero or stale: finite numbers, which a mask excludes.
    """

    def __init__(self, architecture: DecoderArchitecture, device: torch.device, dtype: torch.dtype) -> None:
        """An empty cache for this architecture."""
        self._architecture = architecture
        self._device = device
        self._dtype = dtype
        self.clear()

    def clear(self) -> None:
        """Remove all slots, and free the memory."""
        self.count = 0
        self.width = 0
        self._layers = [self._zeros(0, 0) for _ in range(self._architecture.layers)]

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the slots in use: [count, kv_heads, width, head_dim] each."""
        keys_values = self._layers[number][:, : self.count]
        return keys_values[0], keys_values[1]

    def resize(self, count: int, tokens: int) -> None:
        """Resize to `count` slots, new ones at the end, with a width for `tokens`, the longest content."""
        width = padded_width(tokens)
        if width != self.width or count > self._layers[0].shape[1]:
            kept = (slice(None), slice(min(count, self.count)), slice(None), slice(min(width, self.width)))
            for number, old in enumerate(self._layers):
                new = self._zeros(count, width)
                new[kept] = old[kept]
                self._layers[number] = new
        self.count, self.width = count, width

    def compact(self, compaction: Compaction) -> None:
        """Remove slots; their memory stays allocated."""
        self.count = compaction.after
        for tensor in self._layers:
            compaction.apply(tensor, dim=1)

    def _zeros(self, slots: int, width: int) -> torch.Tensor:
        sizes = (2, slots, self._architecture.kv_heads, width, self._architecture.head_dim)
        return torch.zeros(sizes, device=self._device, dtype=self._dtype)
