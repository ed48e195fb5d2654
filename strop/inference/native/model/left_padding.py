"""Prompts as rows of one width, padded on the left, as transformers' caches need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strop.types import IntArray


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
