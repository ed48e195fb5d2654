"""Decoding of image files, and a cache of processed images."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from strop.errors import DataError
from strop.types import ImageReference, VisionInputs

CACHE_BYTES = 2**29
"""Memory for processed images, which several passes of a step use again."""


def decode_image(reference: ImageReference) -> Image.Image:
    """The image in RGB, rotated as its EXIF data ask for. Raises `DataError` for a missing or damaged file."""
    try:
        with Image.open(reference.path) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"The image {reference.path} cannot be read: {error}. Put the file back, or remove the rows that use it."
        ) from error
    if image.size != (reference.width, reference.height):
        raise DataError(
            f"The image {reference.path} has {image.size[0]} x {image.size[1]} pixels, but it was recorded with "
            f"{reference.width} x {reference.height}, from which its tokens were counted. Put the original file back."
        )
    return image


def concatenate_inputs(inputs: Sequence[VisionInputs]) -> VisionInputs:
    """The inputs of several images as one."""

    def joined(arrays: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any] | None:
        present = [array for array in arrays if array is not None]
        return np.concatenate(present) if present else None

    return VisionInputs(
        torch.cat([each.pixel_values for each in inputs]),
        grid=joined([each.grid for each in inputs]),
        pixel_mask=joined([each.pixel_mask for each in inputs]),
    )


class ProcessedImages:
    """Processed images by digest; the least recently used are dropped above `CACHE_BYTES`. Thread-safe."""

    def __init__(self, process: Callable[[ImageReference], VisionInputs]) -> None:
        self._process = process
        self._kept: OrderedDict[str, VisionInputs] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __getitem__(self, reference: ImageReference) -> VisionInputs:
        with self._lock:
            if reference.digest in self._kept:
                self._kept.move_to_end(reference.digest)
                return self._kept[reference.digest]
        inputs = self._process(reference)
        with self._lock:
            if reference.digest not in self._kept:
                self._kept[reference.digest] = inputs
                self._bytes += inputs.pixel_values.nbytes
            while self._bytes > CACHE_BYTES and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.pixel_values.nbytes
        return inputs
