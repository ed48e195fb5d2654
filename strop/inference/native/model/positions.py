"""Positions of rows in a decoding step and in padded prompts, and rotary embeddings (arXiv 2104.09864).

Rotary embeddings have Hugging Face's frequencies, also of positions in three dimensions (arXiv 2409.12191).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from strop.inference.native.model.runner import Compaction
from strop.transfers import to_device
from strop.types import IntArray


class RowPositions:
    """Position of each of R rows in its sequence; up to the allocated number, rows follow that are not in use.

    A step may compute rows that are not in use, too: they have a valid token, no prompt, and fewer tokens
    than the longest row in use.
    """

    def __init__(self, device: torch.device) -> None:
        """No rows."""
        self._device = device
        self.slots: list[int] = []
        """[R] Slot of the row's prompt, on the host."""
        self.lengths: list[int] = []
        """[R] `own_tokens` on the host, so that a step does not wait for the device."""
        self._columns = torch.zeros(4, 0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def longest(self) -> int:
        """Largest number of sampled tokens in the cache of any row; 0 without rows."""
        return max(self.lengths, default=0)

    @property
    def next_tokens(self) -> torch.Tensor:
        """[allocated] int64 Token that the next step processes."""
        return self._columns[0]

    @property
    def prompt_tokens(self) -> torch.Tensor:
        """[allocated] int64 Length of the row's prompt."""
        return self._columns[1]

    @property
    def first_positions(self) -> torch.Tensor:
        """[allocated] int64 Position of the first sampled token; below `prompt_tokens` after a prompt with images."""
        return self._columns[2]

    @property
    def own_tokens(self) -> torch.Tensor:
        """[allocated] int64 Number of the row's sampled tokens in the cache; a step adds 1 on the device."""
        return self._columns[3]

    def reserve(self, rows: int) -> None:
        """Allocate this number of rows or more."""
        missing = rows - self._columns.shape[1]
        if missing > 0:
            self._columns = torch.cat((self._columns, self._columns.new_zeros(4, missing)), dim=1)

    def add(self, slots: Sequence[int], prompt_tokens: Sequence[int], first_positions: Sequence[int]) -> None:
        """Append rows without sampled tokens, for which memory is reserved."""
        first = len(self)
        self.slots += slots
        self.lengths += [0] * len(slots)
        none: list[int] = [0] * len(slots)
        added: IntArray = np.array([none, prompt_tokens, first_positions, none])
        self._columns[:, first : len(self)] = to_device(added, self._device)

    def advance(self) -> None:
        """Count the token that a step has added to each row on the device."""
        self.lengths[:] = [length + 1 for length in self.lengths]

    def compact(self, compaction: Compaction) -> None:
        """Remove rows."""
        compaction.apply_to_list(self.slots)
        compaction.apply_to_list(self.lengths)
        compaction.apply(self._columns, dim=1)
        self._columns[:, compaction.after :] = 0


@dataclass(frozen=True, slots=True)
class LeftPadded:
    """n prompts with the width T of the longest."""

    token_ids: torch.Tensor
    """[n, T] int64, 0 for padding"""
    mask: torch.Tensor
    """[n, T] int64, 0 for padding"""
    positions: torch.Tensor
    """[n, T] int64, 0 for padding"""


def left_padded(prompts: Sequence[IntArray], device: torch.device) -> LeftPadded:
    """The prompts' tokens, mask and positions."""
    width = max(len(prompt) for prompt in prompts)
    tokens = np.zeros((len(prompts), width), np.int64)
    mask = np.zeros((len(prompts), width), np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    attention_mask = torch.from_numpy(mask).to(device)
    positions = (attention_mask.cumsum(1) - 1).clamp(min=0)
    return LeftPadded(torch.from_numpy(tokens).to(device), attention_mask, positions)


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
