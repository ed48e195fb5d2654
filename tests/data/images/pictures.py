"""Small encoded images, and a processor that needs no model."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from strop.config.schema.data import ImagesConfig
from strop.data.images.prompt_images import RunImages
from strop.data.images.store import ImageStore
from strop.errors import DataError
from strop.types import ImageReference, IntArray, VisionInputs


def encoded(
    color: Any = "red", size: tuple[int, int] = (8, 4), format: str = "PNG", mode: str = "RGB", **options: Any
) -> bytes:
    """An encoded image of one color."""
    data = BytesIO()
    Image.new(mode, size, color).save(data, format, **options)
    return data.getvalue()


class SquareProcessor:
    """An `ImageProcessor`: one token for each 4 x 4 pixels, of the id `image_token_id`."""

    def __init__(self, image_token_id: int) -> None:
        self.image_token_id = image_token_id

    def token_count(self, width: int, height: int) -> int:
        if width > 400:
            raise DataError("An image is too wide.")
        return width * height // 16

    feature_count = token_count

    def write_images(self, text: str) -> str:
        return text

    def expand(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        pads = token_ids == self.image_token_id
        if pads.sum() != len(media):
            raise DataError(f"The prompt has {pads.sum()} image tokens for {len(media)} images.")
        lengths = np.ones(len(token_ids), dtype=np.int64)
        lengths[pads] = [self.token_count(image.width, image.height) for image in media]
        return np.repeat(token_ids, lengths)

    def positions(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        return np.arange(len(token_ids), dtype=np.int32)

    def process(self, media: Sequence[ImageReference]) -> VisionInputs:
        raise AssertionError("the data side needs no pixels")

    def placeholder(self) -> VisionInputs:
        raise AssertionError("the data side needs no pixels")


def prompt_images(folder: Path, image_token_id: int = 7, **settings: Any) -> RunImages:
    """Images that are stored in a folder."""
    return RunImages(ImageStore(folder), SquareProcessor(image_token_id), ImagesConfig(**settings))
