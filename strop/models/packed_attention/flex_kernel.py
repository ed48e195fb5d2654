"""Attention over packed segments on a GPU by torch's flex attention, for what FlashAttention does not support.

A query at token q sees a key at token k if k is in q's segment or in one of its ancestors, and k <= q, or k is in the
same image. With `subtree_ends[k]` the end of the last segment that has k's segment as an ancestor, this is

    (k <= q or k < visible_ends[q]) and q < subtree_ends[k]

because the segments below a prefix are adjacent to it. Which blocks of scores are computed is planned on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask

from strop.errors import ModelError
from strop.models.packed_attention.options import AttentionOptions
from strop.models.packed_attention.segments import PackedSegments
from strop.transfers import to_device
from strop.types import BoolArray, IndexArray, IntArray

BLOCK = 128
"""Queries and keys per block of scores."""


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
    out: Tensor = _function(query.device.type)(
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
def _function(device_type: str) -> Callable[..., Any]:
    """Compiled for a GPU, once for all lengths: without compilation every score would be stored."""
    plain: Callable[..., Any] = torch_flex.flex_attention
    return torch.compile(plain, dynamic=True) if device_type == "cuda" else plain


@cache
def _softcap(limit: float) -> Callable[..., Tensor]:
    def capped(score: Tensor, *_indices: Tensor) -> Tensor:
        return limit * torch.tanh(score / limit)

    return capped
