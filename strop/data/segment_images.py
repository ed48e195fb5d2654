"""Images of a micro-batch's segments: which images each segment holds, and the positions of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from strop.errors import DataError
from strop.protocols import ImageProcessor
from strop.transfers import to_device
from strop.types import Experience, ImageReference, IntArray, PackedImages

SegmentTokens = tuple[Experience, int, int | None]
"""Tokens of an experience: first, and end, or None for the experience's end."""


class SegmentImages:
    """Images and positions of segments that are packed end to end. Raises `DataError` as `image_spans` does."""

    def __init__(self, segments: Sequence[SegmentTokens], processor: ImageProcessor) -> None:
        self._segments = segments
        self._processor = processor
        self._media = tuple(reference for segment in segments for reference in _images_in(segment, processor))

    def packed(self) -> PackedImages:
        """The images, with a mask of their pad tokens."""
        pieces = [
            image_mask(experience, self._processor)[start:stop] for experience, start, stop in self._segments
        ]
        processor, media = self._processor, self._media
        return PackedImages(media, np.concatenate(pieces), lambda: processor.process(media))

    def position_ids(self, device: torch.device | str) -> torch.Tensor:
        """[T] or [3, T] int64"""
        pieces = [self._positions(experience)[..., start:stop] for experience, start, stop in self._segments]
        return to_device(np.concatenate(pieces, axis=-1, dtype=np.int64), device)

    def _positions(self, experience: Experience) -> IntArray:
        # A pad token that the model sampled has the position of text.
        token_ids = np.where(experience.loss_mask, -1, experience.token_ids)
        return self._processor.positions(token_ids, experience.media)


def image_mask(
    experience: Experience, processor: ImageProcessor
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """[L] Whether a token is a pad token of an image; one that the model sampled is not."""
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        experience.token_ids == processor.image_token_id
    ) & ~experience.loss_mask
    return mask


def image_spans(
    experience: Experience, processor: ImageProcessor
) -> Iterator[tuple[ImageReference, int, int]]:
    """Each image with the position of its first pad token and the position after its last.

    Raises `DataError` if the number of pad tokens is not that of the images.
    """
    pads = np.flatnonzero(image_mask(experience, processor))
    counts = [processor.feature_count(each.width, each.height) for each in experience.media]
    if len(pads) != sum(counts):
        raise DataError(
            f"Experience {experience.id} has {len(pads)} image tokens, but its {len(counts)} images have "
            f"{sum(counts)}. Was it made with other values of data.images.min_pixels and max_pixels, or with another "
            "model?"
        )
    used = 0
    for reference, count in zip(experience.media, counts, strict=True):
        yield reference, int(pads[used]), int(pads[used + count - 1]) + 1
        used += count


def _images_in(segment: SegmentTokens, processor: ImageProcessor) -> Iterator[ImageReference]:
    experience, start, stop = segment
    for reference, first, end in image_spans(experience, processor):
        if stop is not None and first < stop < end:
            raise DataError(
                f"The prompt of experience {experience.id} ends with an image, without a token after it. The chat "
                "template must write one, such as that of the assistant's turn."
            )
        if start <= first and (stop is None or end <= stop):
            yield reference
