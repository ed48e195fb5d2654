"""Layout of a micro-batch's segments for attention: runs of segments that are computed together.

A *run* is a group of segments with the same ancestors (their prefix, its prefix, and so on) and the same length.
Segments of similar length are padded to the longest of them, for attention only: a segment's queries come before
its padding and so never see it. Segments are put into the order of their runs: all without a prefix, then those
whose prefix is one of them, and so on; with the same prefix, by length.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Segments with the same ancestors, padded to one length."""

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
    """The runs of a micro-batch, in the order of their positions."""

    runs: tuple[SegmentRun, ...]
    padded_positions: Tensor | None = None
    """[T] Position of each token; None if all stand where they were."""
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
    lengths, prefix_of = segments.lengths(), segments.prefix_of
    starts: list[int] = [0] * len(lengths)
    ancestors: list[TokenRanges] = [()] * len(lengths)
    runs: list[SegmentRun] = []
    tokens: list[IndexArray] = []
    end = 0
    for members in _group_by_length(segments):
        prefix, length = prefix_of[members[-1]], lengths[members[-1]]
        above: TokenRanges = ()
        if prefix >= 0:
            above = (*ancestors[prefix], (starts[prefix], starts[prefix] + lengths[prefix]))
        runs.append(SegmentRun(end, len(members), length, above))
        for segment in members:
            starts[segment], ancestors[segment] = end, above
            first, stop = segments.bounds[segment : segment + 2]
            tokens.append(np.minimum(np.arange(first, first + length), stop - 1))
            end += length
    positions = np.concatenate([start + np.arange(n) for start, n in zip(starts, lengths, strict=True)])
    source = np.concatenate(tokens)
    if np.array_equal(positions, np.arange(end)):
        return SegmentLayout(tuple(runs), visible=_visible_keys(segments, slice(None), device))
    visible = _visible_keys(segments, source, device)
    return SegmentLayout(tuple(runs), to_device(positions, device), to_device(source, device), visible)


def _visible_keys(
    segments: PackedSegments, tokens: slice | IndexArray, device: torch.device | str
) -> VisibleKeys | None:
    ends = segments.visible_ends()
    if ends is None:
        return None
    counts = (ends - np.repeat(segments.bounds[:-1], segments.lengths()))[tokens]
    return VisibleKeys(counts, to_device(counts, device))


def _group_by_length(segments: PackedSegments) -> Iterator[list[int]]:
    """Numbers of each run's segments, shortest first."""
    lengths, prefix_of = segments.lengths(), segments.prefix_of
    depths = [len(line) for line in segments.lines()]
    order = sorted(range(len(lengths)), key=lambda i: (depths[i], prefix_of[i], lengths[i]))
    run: list[int] = []
    for segment in order:
        shortest, longest = lengths[run[0]] if run else 0, lengths[segment]
        similar = longest <= ALWAYS_MERGE_TOKENS or shortest >= (1 - MAX_PADDING_FRACTION) * longest
        if run and not (similar and prefix_of[segment] == prefix_of[run[0]]):
            yield run
            run = []
        run.append(segment)
    yield run
