"""Rotary position embeddings (arXiv 2104.09864) with Hugging Face's frequencies, also of positions in three dimensions
(arXiv 2409.12191)."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from strop.transfers import to_device


class RotaryTable:
    """Table of cos and sin for all positions used so far; sin includes the sign of the rotated half."""

    def __init__(self, config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> None:
        """An empty table of this type on this device."""
        text = config.get_text_config()
        self._module = LlamaRotaryEmbedding(text).to(device)  # type: ignore[arg-type]  # all families have its sizes
        self._dimensions = _dimensions(config, device)
        self._like = torch.empty(0, device=device, dtype=dtype)
        self._cos = self._sin = self._like

    @property
    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin of all positions, [length, 1, head_dim] each."""
        return self._cos, self._sin

    def reserve(self, length: int) -> None:
        """Compute the positions below `length`."""
        if length > len(self._cos):
            self._grow(max(length, 2 * len(self._cos), 256))

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin, [n, 1, head_dim] each, of reserved positions [n] or [3, n]."""
        if positions.ndim == 1:
            return self._cos[positions], self._sin[positions]
        assert self._dimensions is not None
        channels = positions[self._dimensions].t()[:, None]
        return self._cos.gather(0, channels), self._sin.gather(0, channels)

    def _grow(self, length: int) -> None:
        positions = torch.arange(length, device=self._like.device)[None]
        cos, sin = self._module(self._like, positions)
        first, second = sin[0].chunk(2, dim=-1)
        self._cos, self._sin = cos[0, :, None], torch.cat((-first, second), dim=-1)[:, None]


def _dimensions(config: PretrainedConfig, device: torch.device) -> torch.Tensor | None:
    """[head_dim] Dimension of the position that each channel rotates by: time, row or column; None for text models.

    Qwen3-VL interleaves the dimensions, the earlier families have them one after the other.
    """
    sections = config.get_text_config().rope_parameters.get("mrope_section")
    if sections is None:
        return None
    half = np.repeat(np.arange(3), sections)
    if config.model_type == "qwen3_vl":
        half = np.zeros_like(half)
        for dimension in (1, 2):
            half[dimension : 3 * sections[dimension] : 3] = dimension
    return to_device(np.concatenate((half, half)), device)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate [n, heads, head_dim] by cos and signed sin [n, 1, head_dim]."""
    half = heads.shape[-1] // 2
    swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
    return (heads * cos).addcmul_(swapped, sin)
