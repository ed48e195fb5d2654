"""Attention over packed segments on a GPU, in one call of torch's variable-length attention (FlashAttention 2).

Each segment is a sequence of its own: its queries are its tokens, and its keys those of its ancestors and its own,
gathered by index. The causal mask is aligned to the last key, so that a query sees all ancestors.

Dimensions, in addition to those of `strop.types`:

    H  query heads     K  key heads     D  head size     G  gathered keys of all segments
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from strop.models.packed_attention.options import AttentionOptions
from strop.models.packed_attention.segments import PackedSegments
from strop.transfers import to_device


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
