"""Rotary positions (arXiv 2104.09864), by Hugging Face's own frequencies."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


class RotaryTable:
    """cos and sin of every position met so far; sin carries the sign of the rotated half."""

    def __init__(self, config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._module = LlamaRotaryEmbedding(config).to(device)  # type: ignore[arg-type]  # all families have its sizes
        self._like = torch.empty(0, device=device, dtype=dtype)
        self._cos = self._sin = self._like

    def at(self, positions: torch.Tensor, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin, [n, 1, head_dim] each, of positions [n] below `longest`."""
        if longest > len(self._cos):
            self._grow(max(longest, 2 * len(self._cos), 256))
        return self._cos[positions], self._sin[positions]

    def _grow(self, length: int) -> None:
        every = torch.arange(length, device=self._like.device)[None]
        cos, sin = self._module(self._like, every)
        first, second = sin[0].chunk(2, dim=-1)
        self._cos, self._sin = cos[0, :, None], torch.cat((-first, second), dim=-1)[:, None]


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn [n, heads, head_dim] by cos and signed sin [n, 1, head_dim]."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return (heads * cos).addcmul_(swapped, sin)
