"""Layout of a micro-batch's segments for attention, in runs of segments that are computed together.

A *run* is a sequence of adjacent segments with the same ancestors (their prefix, its prefix, and so on) and
the same length. Segments of similar length are padded to the longest of them, for attention only: a segment's
queries come before its padding and so never see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from strop.models.packed_attention.segments import PackedSegments
from strop.transfers import to_device
from strop.types import IndexArray

TokenRanges = tuple[tuple[int, int], ...]
"""First token and end of each range."""

ALWAYS_MERGE_TOKENS = 64
"""Segments of at most this length make one run for any difference in length: padding costs less than a run."""
MAX_PADDING_FRACTION = 0.25
"""Maximum padding of longer segments in one run, as a fraction of the longest."""


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Adjacent segments, padded to one length, with the same ancestors."""

    start: int
    num_segments: int
    length: int
    ancestors: TokenRanges
    """Outermost first."""


@dataclass(frozen=True, slots=True)
class VisibleKeys:
    """Number of tokens of its own segment that each token sees, at padded positions, on the host and the device."""

    counts: IndexArray
    """[padded T]"""
    on_device: Tensor
    """[padded T] int64"""


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The runs of a micro-batch, in padded positions."""

    runs: tuple[SegmentRun, ...]
    padded_positions: Tensor | None = None
    """[T] Padded position of each token; None without padding."""
    source_tokens: Tensor | None = None
    """[padded T] Token at each padded position; in the padding, the segment's last."""
    visible: VisibleKeys | None = None
    """Tokens of its own segment that each token sees; None for all up to itself."""

    def pad(self, values: Tensor) -> Tensor:
        """[padded T, ...] from [T, ...]"""
        return values if self.source_tokens is None else values[self.source_tokens]

    def pad_with_zeros(self, values: Tensor) -> Tensor:
        """[padded T, ...] from [T, ...], with zeros in the padding."""
        if self.padded_positions is None or self.source_tokens is None:
            return values
        return values.new_zeros(len(self.source_tokens), *values.shape[1:]).index_copy_(
            0, self.padded_positions, values
        )

    def unpad(self, values: Tensor) -> Tensor:
        """[T, ...] from [padded T, ...]"""
        return values if self.padded_positions is None else values[self.padded_positions]


def plan_layout(segments: PackedSegments, device: torch.device | str = "cpu") -> SegmentLayout:
    """The layout of a micro-batch's segments."""
    lengths, bounds, prefix_of = segments.lengths(), segments.bounds, segments.prefix_of
    starts: list[int] = []
    ancestors: list[TokenRanges] = []
    runs: list[SegmentRun] = []
    end = 0
    for count, length in _group_by_length(lengths, prefix_of):
        prefix = prefix_of[len(starts)]
        above: TokenRanges = ()
        if prefix >= 0:
            above = (*ancestors[prefix], (starts[prefix], starts[prefix] + lengths[prefix]))
        runs.append(SegmentRun(end, count, length, above))
        ancestors += [above] * count
        starts += [end + i * length for i in range(count)]
        end += count * length
    if end == bounds[-1]:
        return SegmentLayout(tuple(runs), visible=_visible_keys(segments, slice(None), device))
    positions = np.concatenate([start + np.arange(n) for start, n in zip(starts, lengths, strict=True)])
    tokens = np.full(end, -1)
    tokens[positions] = np.arange(len(positions))
    tokens = np.maximum.accumulate(tokens)
    visible = _visible_keys(segments, tokens, device)
    padded, source = (to_device(each, device) for each in (positions, tokens))
    return SegmentLayout(tuple(runs), padded, source, visible)


def _visible_keys(
    segments: PackedSegments, tokens: slice | IndexArray, device: torch.device | str
) -> VisibleKeys | None:
    ends = segments.visible_ends()
    if ends is None:
        return None
    counts = (ends - np.repeat(segments.bounds[:-1], segments.lengths()))[tokens]
    return VisibleKeys(counts, to_device(counts, device))


def _group_by_length(lengths: Sequence[int], prefix_of: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Number of segments and length of each run, in order."""
    count, longest, shortest = 0, 0, 0
    for segment, length in enumerate(lengths):
        high, low = max(longest, length), min(shortest, length)
        similar = high <= ALWAYS_MERGE_TOKENS or low >= (1 - MAX_PADDING_FRACTION) * high
        if count and similar and prefix_of[segment] == prefix_of[segment - 1]:
            count, longest, shortest = count + 1, high, low
        else:
            if count:
                yield count, longest
            count, longest, shortest = 1, length, length
    yield count, longest
