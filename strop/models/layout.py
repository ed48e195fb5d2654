"""Where a micro-batch's segments stand for its attention: in runs that can be computed side by side.

A *run* is a row of neighbouring segments that share their ancestors (their prefix, its prefix, and so
on) and are of one length. Segments of nearly one length are filled up to the longest of them, for the
attention alone: a segment's queries come before its filling and so never see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

Ranges = tuple[tuple[int, int], ...]
"""Where each begins and ends."""

ALWAYS_TOGETHER = 64
"""Segments up to this length make one run, however different they are: they cost less than a run."""
FILLED_AT_MOST = 0.25
"""Longer ones do when this share of the longest is all that has to be filled."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring segments, filled up to one length, with the same ancestors."""

    start: int
    segments: int
    length: int
    ancestors: Ranges
    """Outermost first."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The runs of a micro-batch; all places are those after filling up."""

    runs: tuple[Run, ...]
    places: Tensor | None = None
    """[T] Where each token stands; None where nothing is filled up."""
    tokens: Tensor | None = None
    """[filled T] Which token stands there: in the filling, the segment's last."""

    def fill(self, values: Tensor) -> Tensor:
        """[filled T, ...] from [T, ...]"""
        return values if self.tokens is None else values[self.tokens]

    def fill_with_zeros(self, values: Tensor) -> Tensor:
        """The same, the filling being zeros."""
        if self.places is None or self.tokens is None:
            return values
        return values.new_zeros(len(self.tokens), *values.shape[1:]).index_copy_(0, self.places, values)

    def empty(self, values: Tensor) -> Tensor:
        """[T, ...] from [filled T, ...]"""
        return values if self.places is None else values[self.places]


def plan(bounds: Sequence[int], prefix_of: Sequence[int], device: torch.device | str = "cpu") -> Layout:
    """The layout of a micro-batch, from its `cu_seqlens` and `prefix_of`."""
    lengths = [stop - start for start, stop in pairwise(bounds)]
    starts: list[int] = []
    ancestors: list[Ranges] = []
    runs: list[Run] = []
    end = 0
    for count, length in _alike(lengths, prefix_of):
        prefix = prefix_of[len(starts)]
        above: Ranges = ()
        if prefix >= 0:
            above = (*ancestors[prefix], (starts[prefix], starts[prefix] + lengths[prefix]))
        runs.append(Run(end, count, length, above))
        ancestors += [above] * count
        starts += [end + i * length for i in range(count)]
        end += count * length
    if end == bounds[-1]:
        return Layout(tuple(runs))
    places = np.concatenate([start + np.arange(n) for start, n in zip(starts, lengths, strict=True)])
    tokens = np.full(end, -1)
    tokens[places] = np.arange(len(places))
    tokens = np.maximum.accumulate(tokens)
    return Layout(tuple(runs), *(torch.from_numpy(x).to(device) for x in (places, tokens)))


def _alike(lengths: Sequence[int], prefix_of: Sequence[int]) -> Iterator[tuple[int, int]]:
    """How many neighbours make one run, and its length, from the first segment to the last."""
    count, longest, shortest = 0, 0, 0
    for segment, length in enumerate(lengths):
        high, low = max(longest, length), min(shortest, length)
        alike = high <= ALWAYS_TOGETHER or low >= (1 - FILLED_AT_MOST) * high
        if count and alike and prefix_of[segment] == prefix_of[segment - 1]:
            count, longest, shortest = count + 1, high, low
        else:
            if count:
                yield count, longest
            count, longest, shortest = 1, length, length
    yield count, longest
