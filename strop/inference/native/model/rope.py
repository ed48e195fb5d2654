"""Rotary position embeddings (arXiv 2104.09864) with Hugging Face's frequencies."""

from __future__ import annotations

import torch
from transformers import PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


class RotaryTable:
    """Table of cos and sin for all positions used so far; sin includes the sign of the rotated half."""

    def __init__(self, config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> None:
        """An empty table of this type on this device."""
        self._module = LlamaRotaryEmbedding(config).to(device)  # type: ignore[arg-type]  # all families have its sizes
        self._like = torch.empty(0, device=device, dtype=dtype)
        self._cos = self._sin = self._like

    def at(self, positions: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin, [n, 1, head_dim] each, of positions [n] below `length`."""
        if length > len(self._cos):
            self._grow(max(length, 2 * len(self._cos), 256))
        return self._cos[positions], self._sin[positions]

    def _grow(self, length: int) -> None:
        positions = torch.arange(length, device=self._like.device)[None]
        cos, sin = self._module(self._like, positions)
        first, second = sin[0].chunk(2, dim=-1)
        self._cos, self._sin = cos[0, :, None], torch.cat((-first, second), dim=-1)[:, None]


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [n, heads, head_dim] by cos and signed sin [n, 1, head_dim]."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return (heads * cos).addcmul_(swapped, sin)
