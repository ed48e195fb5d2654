"""Attention over packed segments with shared prompts; the kernel is chosen here, by device.

| device | kernel |
| --- | --- |
| CPU | blocks of scores in torch (`block_kernel`) |
| GPU, half precision | one call of variable-length FlashAttention 2 |
| GPU, otherwise | torch's flex attention: for float32, a softcap, images that see all of themselves, old GPUs |

Variable-length attention: each segment is a sequence of its own; its queries are its tokens, and its keys those of its
ancestors and its own, gathered by index. The causal mask is aligned to the last key, so that a query sees all
ancestors.

Flex attention: a query at token q sees a key at token k if k is in q's segment or in one of its ancestors, and k <= q,
or k is in the same image. With `subtree_ends[k]` the end of the last segment that has k's segment as an ancestor, this
is

    (k <= q or k < visible_ends[q]) and q < subtree_ends[k]

because the segments below a prefix are adjacent to it. Which blocks of scores are computed is planned on the host.

Dimensions, in addition to those of `strop.types`:

    H  query heads     K  key heads     D  head size     G  gathered keys of all segments
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal, assert_never

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.attention.varlen import varlen_attn

from strop.errors import ModelError
from strop.models.packed_attention.block_kernel import SegmentLayout, block_attention, plan_layout
from strop.models.packed_attention.segments import AttentionOptions, PackedSegments
from strop.transfers import to_device
from strop.types import BoolArray, IndexArray, IntArray

_Kernel = Literal["blocks", "varlen", "flex"]

_VARLEN_DTYPES = (torch.bfloat16, torch.float16)
_VARLEN_MAX_HEAD = 256
"""Largest head size of FlashAttention 2, which must also be a multiple of 8."""
_VARLEN_CAPABILITY = (8, 0)
"""First compute capability with FlashAttention 2 (Ampere)."""
BLOCK = 128
"""Queries and keys per block of scores."""


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
        """The layout of variable-length attention."""
        return VarlenLayout.of(self.segments, self.device)

    def flex_mask(self, window: int | None) -> BlockMask:
        """The mask of flex attention for a window."""
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
) -> _Kernel:
    """The kernel for these queries and values."""
    if query.device.type != "cuda":
        return "blocks"
    head = query.shape[-1]
    supported = (
        query.dtype in _VARLEN_DTYPES
        and head == value.shape[-1]
        and head <= _VARLEN_MAX_HEAD
        and head % 8 == 0
        and options.softcap is None
        and segments.images is None
        and torch.cuda.get_device_capability(query.device) >= _VARLEN_CAPABILITY
    )
    return "varlen" if supported else "flex"


@dataclass(frozen=True, slots=True)
class VarlenLayout:
    """Queries and keys of each segment."""

    key_tokens: Tensor | None
    """[G] int64 Token of each gathered key; None where no segment has a prefix, and the keys are the tokens."""
    query_bounds: Tensor
    """[S+1] int32 Boundaries of the segments' queries."""
    key_bounds: Tensor
    """[S+1] int32 Boundaries of the segments' keys."""
    max_queries: int
    """Largest number of queries of a segment."""
    max_keys: int
    """Largest number of keys of a segment."""

    @classmethod
    def of(cls, segments: PackedSegments, device: torch.device) -> VarlenLayout:
        """The layout of a micro-batch's segments."""
        lengths, lines, starts = segments.lengths(), segments.lines(), segments.bounds
        keys = [sum(lengths[number] for number in line) for line in lines]
        tokens = None
        if any(prefix >= 0 for prefix in segments.prefix_of):
            parts = [np.arange(starts[number], starts[number + 1]) for line in lines for number in line]
            tokens = to_device(np.concatenate(parts), device)
        return cls(
            key_tokens=tokens,
            query_bounds=to_device(np.array(segments.bounds, dtype=np.int32), device),
            key_bounds=to_device(np.cumsum([0, *keys], dtype=np.int32), device),
            max_queries=max(lengths),
            max_keys=max(keys),
        )

    def gather(self, tokens: Tensor) -> Tensor:
        """[G, ...] The keys of all segments, from [T, ...]."""
        return tokens if self.key_tokens is None else tokens.index_select(0, self.key_tokens)


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: VarlenLayout, options: AttentionOptions
) -> Tensor:
    """[T, H, D] from query [T, H, D], key and value [T, K, D]; half precision only, without a softcap."""
    out = varlen_attn(
        query,
        layout.gather(key),
        layout.gather(value),
        layout.query_bounds,
        layout.key_bounds,
        layout.max_queries,
        layout.max_keys,
        scale=options.scale,
        window_size=(-1 if options.window is None else options.window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(out, Tensor)
    return out


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """Bounds that decide which keys a query sees, on the host."""

    subtree_ends: IndexArray
    """[T] End of the last segment that has the token's segment as an ancestor, or of the segment itself."""
    positions: IndexArray
    """[T] Position of each token in its sequence, which a window counts in."""
    visible_ends: IndexArray
    """[T] End of the tokens of its own segment that each token sees."""

    @classmethod
    def of(cls, segments: PackedSegments) -> TokenBounds:
        """The bounds of a micro-batch's tokens.

        Raises ModelError where the segments below a prefix are not adjacent to it.
        """
        lengths, lines = segments.lengths(), segments.lines()
        ends = list(segments.bounds[1:])
        for number in reversed(range(len(lengths))):
            prefix = segments.prefix_of[number]
            if prefix >= 0 and prefix not in lines[number - 1]:
                raise ModelError(
                    f"segment {number} of a micro-batch follows neither its prefix, segment {prefix}, nor one below it"
                )
            if prefix >= 0:
                ends[prefix] = max(ends[prefix], ends[number])
        above = [sum(lengths[number] for number in line[:-1]) for line in lines]
        numbers = np.arange(segments.tokens)
        starts = np.repeat(segments.bounds[:-1], lengths)
        visible = segments.visible_ends()
        return cls(
            subtree_ends=np.repeat(ends, lengths),
            positions=np.repeat(above, lengths) + numbers - starts,
            visible_ends=numbers + 1 if visible is None else visible,
        )


def plan_mask(segments: PackedSegments, window: int | None, device: torch.device) -> BlockMask:
    """The mask of a micro-batch's segments, for one window. Raises as `TokenBounds.of`."""
    bounds = TokenBounds.of(segments)
    partial, full = _blocks(bounds, window)
    counts, blocks, full_counts, full_blocks = (
        to_device(each, device) for each in (*_indices(partial), *_indices(full))
    )
    return BlockMask.from_kv_blocks(
        counts,
        blocks,
        full_counts,
        full_blocks,
        BLOCK_SIZE=BLOCK,
        mask_mod=_mask_function(bounds, window, device),
        seq_lengths=(segments.tokens, segments.tokens),
    )


def _blocks(bounds: TokenBounds, window: int | None) -> tuple[BoolArray, BoolArray]:
    """[B, B] each: blocks of which some scores may be visible, and blocks of which all are."""
    tokens = len(bounds.positions)
    first = np.arange(0, tokens, BLOCK)
    last = np.minimum(first + BLOCK, tokens) - 1

    def extremes(values: IndexArray) -> tuple[IndexArray, IndexArray]:
        return np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)

    (least_end, greatest_end), (_, seen) = extremes(bounds.subtree_ends), extremes(bounds.visible_ends)
    some = (first < seen[:, None]) & (first[:, None] < greatest_end)
    every = (last <= first[:, None]) & (last[:, None] < least_end)
    if window is not None:
        least, greatest = extremes(bounds.positions)
        some &= least[:, None] - greatest < window
        every &= greatest[:, None] - least < window
    return some & ~every, every


def _indices(blocks: BoolArray) -> tuple[IntArray, IntArray]:
    """[1, 1, B] Number of chosen key blocks of each query block, and [1, 1, B, B] their numbers, before the others."""
    order = np.argsort(~blocks, axis=1, kind="stable")
    return blocks.sum(1, dtype=np.int32)[None, None], order.astype(np.int32)[None, None]


def _mask_function(
    bounds: TokenBounds, window: int | None, device: torch.device
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    ends, visible, positions = (
        to_device(each, device) for each in (bounds.subtree_ends, bounds.visible_ends, bounds.positions)
    )

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        found = ((key <= query) | (key < visible[query])) & (query < ends[key])
        return found if window is None else found & (positions[query] - positions[key] < window)

    return sees


def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, options: AttentionOptions
) -> Tensor:
    """[T, H, D] from query [T, H, D], key and value [T, K, D]."""
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    out: Tensor = _flex_function(query.device.type)(
        q,
        k,
        v,
        score_mod=None if options.softcap is None else _softcap(options.softcap),
        block_mask=mask,
        scale=options.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out[0].transpose(0, 1)


@cache
def _flex_function(device_type: str) -> Callable[..., Any]:
    """Compiled for a GPU, once for all lengths: without compilation every score would be stored."""
    plain: Callable[..., Any] = torch_flex.flex_attention
    return torch.compile(plain, dynamic=True) if device_type == "cuda" else plain


@cache
def _softcap(limit: float) -> Callable[..., Tensor]:
    def capped(score: Tensor, *_indices: Tensor) -> Tensor:
        return limit * torch.tanh(score / limit)

    return capped
