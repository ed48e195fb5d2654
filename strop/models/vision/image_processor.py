"""Image processors: how many tokens an image has, which tokens they are, their positions, and its pixels.

The processor of a model folder is transformers' own, in its PIL version; torchvision is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from strop.config.model_files import GRID_FAMILIES, IMAGE_FAMILIES
from strop.errors import DataError, ModelError
from strop.models.vision.mrope import mrope_positions
from strop.models.vision.pixels import ProcessedImages, concatenate_inputs, decode_image
from strop.models.vision.tiles import (
    GemmaImageProcessor,
    IdeficsImageProcessor,
    InternImageProcessor,
    TileImageProcessor,
    replace_pads,
)
from strop.protocols import ImageProcessor
from strop.types import ImageReference, IntArray, VisionInputs

_TILE_PROCESSORS: Mapping[str, type[TileImageProcessor]] = {
    "gemma3": GemmaImageProcessor,
    "idefics3": IdeficsImageProcessor,
    "internvl": InternImageProcessor,
    "smolvlm": IdeficsImageProcessor,
}


def load_image_processor(
    model_path: str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
    trust_remote_code: bool = False,
) -> ImageProcessor:
    """The image processor of a model folder; `min_pixels` and `max_pixels` replace its limits.

    Raises `ModelError` for a model without images, of a family that Strop does not support, or without an image
    processor.
    """
    try:
        config = AutoConfig.from_pretrained(model_path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path: no model could be loaded from {model_path}: {error}") from error
    if config.model_type not in IMAGE_FAMILIES:
        raise ModelError(
            f"model.path: {model_path} is a {config.model_type} model, and images need one of these families: "
            f"{', '.join(sorted(IMAGE_FAMILIES))}. Use such a model, or remove `images` from the tasksets under data."
        )
    try:
        processor = AutoImageProcessor.from_pretrained(  # type: ignore[no-untyped-call]
            model_path, backend="pil", trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(
            f"model.path: no image processor could be loaded from {model_path}: {error}. The folder needs the "
            "preprocessor_config.json of the model."
        ) from error
    if config.model_type in GRID_FAMILIES:
        return GridImageProcessor(config, processor, min_pixels=min_pixels, max_pixels=max_pixels)
    if min_pixels or max_pixels:
        raise ModelError(
            f"data.images.min_pixels and max_pixels: {config.model_type} models scale every image to a size of their "
            f"own. Remove them; the size is in {model_path}/preprocessor_config.json."
        )
    return _TILE_PROCESSORS[config.model_type](config, processor, tokenizer)


class GridImageProcessor:
    """Images of the Qwen-VL families: a run of pad tokens for each, in rows of merged patches."""

    def __init__(
        self, config: PretrainedConfig, processor: Any, *, min_pixels: int | None, max_pixels: int | None
    ) -> None:
        self.image_token_id: int = config.image_token_id
        self._min_pixels: int = min_pixels or processor.size["shortest_edge"]
        self._max_pixels: int = max_pixels or processor.size["longest_edge"]
        self._factor: int = processor.patch_size * processor.merge_size
        self._size = {"shortest_edge": self._min_pixels, "longest_edge": self._max_pixels}
        self._processor = processor
        self._processed = ProcessedImages(self._process)

    def token_count(self, width: int, height: int) -> int:
        """Number of tokens of an image in the expanded prompt."""
        rows, columns = self._grid(width, height)
        return rows * columns

    def feature_count(self, width: int, height: int) -> int:
        """Number of pad tokens among them: all."""
        return self.token_count(width, height)

    def write_images(self, text: str) -> str:
        """The text: the chat template writes an image's one pad token."""
        return text

    def expand(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        """Replace each image's one pad token by its run. Raises `DataError` if their numbers differ."""
        runs = [[self.image_token_id] * self.token_count(each.width, each.height) for each in media]
        return replace_pads(token_ids, self.image_token_id, runs)

    def collapse(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        """Replace each image's run by one pad token: the inverse of `expand`."""
        kept = np.ones(len(token_ids), np.bool_)
        end = 0
        for each in media:
            start = end + int(np.argmax(token_ids[end:] == self.image_token_id))
            end = start + self.token_count(each.width, each.height)
            kept[start + 1 : end] = False
        return token_ids[kept]

    def positions(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        """[3, L] Temporal, vertical and horizontal positions of an expanded sequence."""
        grids = [self._grid(each.width, each.height) for each in media]
        return mrope_positions(token_ids, self.image_token_id, grids)

    def process(self, media: Sequence[ImageReference]) -> VisionInputs:
        """Pixels of the images, in this order."""
        return concatenate_inputs([self._processed[reference] for reference in media])

    def resized(self, reference: ImageReference) -> Image.Image:
        """An image, decoded and scaled to the size that `process` gives it; processing it again changes no pixel."""
        rows, columns = self._grid(reference.width, reference.height)
        size = (columns * self._factor, rows * self._factor)
        return decode_image(reference).resize(size, resample=self._processor.resample)

    @property
    def size(self) -> dict[str, int]:
        """Limits of an image's pixels, by the names of transformers."""
        return dict(self._size)

    def placeholder(self) -> VisionInputs:
        """A small black image."""
        return self._pixels(Image.new("RGB", (self._factor, self._factor)))

    def _grid(self, width: int, height: int) -> tuple[int, int]:
        try:
            resized = smart_resize(height, width, self._factor, self._min_pixels, self._max_pixels)
        except ValueError as error:
            raise DataError(
                f"An image of {width} x {height} pixels cannot be used: {error}. Crop it, or remove its row."
            ) from error
        return resized[0] // self._factor, resized[1] // self._factor

    def _process(self, reference: ImageReference) -> VisionInputs:
        return self._pixels(decode_image(reference))

    def _pixels(self, image: Image.Image) -> VisionInputs:
        found = self._processor(images=[image], size=self._size, return_tensors="pt")
        return VisionInputs(found["pixel_values"], grid=found["image_grid_thw"].numpy())
