"""Layout of a micro-batch's segments for attention, in runs of segments that are computed together.

A *run* is a sequence of adjacent segments with the same ancestors (their prefix, its prefix, and so on) and
the same length. Segments of similar length are padded to the longest of them, for attention only: a segment's
queries come before its padding and so never see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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

    counts: npt.NDArray[np.int64]
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


def plan_layout(
    bounds: Sequence[int],
    prefix_of: Sequence[int],
    device: torch.device | str = "cpu",
    images: npt.NDArray[np.bool_] | None = None,
) -> SegmentLayout:
    """The layout of a micro-batch, from its `cu_seqlens` and `prefix_of`.

    `images` [T] are the pad tokens of images, if each attends to all tokens of its image; adjacent ones are one image.
    """
    lengths = [stop - start for start, stop in pairwise(bounds)]
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
        return SegmentLayout(tuple(runs), visible=_visible_keys(bounds, images, slice(None), device))
    positions = np.concatenate([start + np.arange(n) for start, n in zip(starts, lengths, strict=True)])
    tokens = np.full(end, -1)
    tokens[positions] = np.arange(len(positions))
    tokens = np.maximum.accumulate(tokens)
    visible = _visible_keys(bounds, images, tokens, device)
    padded, source = (torch.from_numpy(x).to(device) for x in (positions, tokens))
    return SegmentLayout(tuple(runs), padded, source, visible)


def _visible_keys(
    bounds: Sequence[int],
    images: npt.NDArray[np.bool_] | None,
    tokens: slice | npt.NDArray[np.int64],
    device: torch.device | str,
) -> VisibleKeys | None:
    """For each of the tokens: of an image, up to the image's last token; of text, up to itself."""
    if images is None or not images.any():
        return None
    total = bounds[-1]
    starts = np.repeat(bounds[:-1], np.diff(bounds))
    is_last = ~images | np.append(~images[1:], True) | np.isin(np.arange(1, total + 1), bounds)
    ends = np.where(is_last, np.arange(1, total + 1), total + 1)
    ends = np.minimum.accumulate(ends[::-1])[::-1]
    counts = (ends - starts)[tokens]
    return VisibleKeys(counts, torch.from_numpy(np.ascontiguousarray(counts)).to(device))


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
