"""Attention over packed segments with shared prompts; the kernel is chosen here, by device.

| device | kernel |
| --- | --- |
| CPU | blocks of scores in torch (`block_kernel`) |
| GPU, half precision | one call of variable-length FlashAttention (`varlen_kernel`) |
| GPU, otherwise | flex attention (`flex_kernel`): for float32, a softcap, images that see all of themselves, old GPUs |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, assert_never

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from strop.models.packed_attention.block_kernel import block_attention
from strop.models.packed_attention.block_layout import SegmentLayout, plan_layout
from strop.models.packed_attention.flex_kernel import flex_attention, plan_mask
from strop.models.packed_attention.options import AttentionOptions
from strop.models.packed_attention.segments import PackedSegments
from strop.models.packed_attention.varlen_kernel import VarlenLayout, varlen_attention

Kernel = Literal["blocks", "varlen", "flex"]

VARLEN_DTYPES = (torch.bfloat16, torch.float16)
VARLEN_MAX_HEAD = 256
"""Largest head size of FlashAttention 2, which must also be a multiple of 8."""
VARLEN_CAPABILITY = (8, 0)
"""First compute capability with FlashAttention 2 (Ampere)."""


@dataclass(frozen=True)
class PackedLayout:
    """The segments of a micro-batch on a device. What a kernel needs of them is computed once, at its first use."""

    segments: PackedSegments
    device: torch.device
    _flex_masks: dict[int | None, BlockMask] = field(default_factory=dict, compare=False)
    """By window."""

    @cached_property
    def blocks(self) -> SegmentLayout:
        """The layout of `block_kernel`."""
        return plan_layout(self.segments, self.device)

    @cached_property
    def varlen(self) -> VarlenLayout:
        """The layout of `varlen_kernel`."""
        return VarlenLayout.of(self.segments, self.device)

    def flex_mask(self, window: int | None) -> BlockMask:
        """The mask of `flex_kernel` for a window."""
        if window not in self._flex_masks:
            self._flex_masks[window] = plan_mask(self.segments, window, self.device)
        return self._flex_masks[window]


def attention(
    query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, options: AttentionOptions
) -> Tensor:
    """[T, H, D] from query [T, H, D], key and value [T, K, D]."""
    kernel = choose_kernel(query, value, layout.segments, options)
    match kernel:
        case "blocks":
            return block_attention(query, key, value, layout.blocks, options)
        case "varlen":
            return varlen_attention(query, key, value, layout.varlen, options)
        case "flex":
            return flex_attention(query, key, value, layout.flex_mask(options.window), options)
        case _:
            assert_never(kernel)


def choose_kernel(
    query: Tensor, value: Tensor, segments: PackedSegments, options: AttentionOptions
) -> Kernel:
    """The kernel for these queries and values."""
    if query.device.type != "cuda":
        return "blocks"
    head = query.shape[-1]
    supported = (
        query.dtype in VARLEN_DTYPES
        and head == value.shape[-1]
        and head <= VARLEN_MAX_HEAD
        and head % 8 == 0
        and options.softcap is None
        and segments.images is None
        and torch.cuda.get_device_capability(query.device) >= VARLEN_CAPABILITY
    )
    return "varlen" if supported else "flex"
