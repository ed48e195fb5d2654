"""Input of every attention kernel: the segments of a micro-batch as numbers on the host, and a model's options."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from strop.types import BoolArray, IndexArray


@dataclass(frozen=True, slots=True)
class PackedSegments:
    """Segments of a micro-batch: a query sees all tokens of its segment's ancestors, and its own segment causally.

    A segment's ancestors are its prefix, the prefix of that one, and so on. All of them stand before it.
    """

    bounds: tuple[int, ...]
    """[S+1] Segment boundaries."""
    prefix_of: tuple[int, ...]
    """[S] Number of the prefix segment, or -1."""
    images: BoolArray | None = None
    """[T] Pad tokens of images, if each attends to all tokens of its image; adjacent ones are one image. None where
    attention is causal throughout."""

    @property
    def tokens(self) -> int:
        """T"""
        return self.bounds[-1]

    def lengths(self) -> list[int]:
        """[S] Number of tokens of each segment."""
        return [stop - start for start, stop in pairwise(self.bounds)]

    def lines(self) -> list[tuple[int, ...]]:
        """[S] Numbers of each segment's ancestors, outermost first, and its own."""
        lines: list[tuple[int, ...]] = []
        for number, prefix in enumerate(self.prefix_of):
            lines.append((*(lines[prefix] if prefix >= 0 else ()), number))
        return lines

    def visible_ends(self) -> IndexArray | None:
        """[T] End of the tokens of its own segment that each token sees: of an image, the image's last token; of text,
        itself. None where attention is causal throughout."""
        if self.images is None or not self.images.any():
            return None
        numbers = np.arange(1, self.tokens + 1)
        is_last = ~self.images | np.append(~self.images[1:], True) | np.isin(numbers, self.bounds)
        ends = np.where(is_last, numbers, self.tokens + 1)
        visible: IndexArray = np.minimum.accumulate(ends[::-1])[::-1]
        return visible


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Options of a model's attention."""

    scale: float
    """Factor of the scores."""
    window: int | None = None
    """Number of last tokens that a query sees, itself included; None for all."""
    softcap: float | None = None
    """Limit in softcap * tanh(score / softcap), as in Gemma 2; None for none."""
