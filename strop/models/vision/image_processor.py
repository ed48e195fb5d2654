"""Image processors: how many tokens an image has, which tokens they are, their positions, and its pixels.

The processor of a model folder is transformers' own, in its PIL version; torchvision is not needed.

A `TileImageProcessor` gives every tile of an image the same number of tokens, in one dimension; the Qwen-VL families
have a grid of tokens and multimodal rotary positions (arXiv 2409.12191, section 2.1).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from transformers import AutoConfig, AutoImageProcessor, PretrainedConfig, PreTrainedTokenizerBase
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from strop.config.model_files import GRID_FAMILIES, IMAGE_FAMILIES
from strop.errors import DataError, ModelError
from strop.protocols import ImageProcessor
from strop.types import ImageReference, IntArray, VisionInputs

_TILE_START = "<fake_token_around_image>"
"""Token before each tile of Idefics 3 and SmolVLM, and after the last."""
_CACHE_BYTES = 2**29
"""Memory for processed images, which several passes of a step use again."""


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
        return _replace_pads(token_ids, self.image_token_id, runs)

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
        return _concatenate_inputs([self._processed[reference] for reference in media])

    def resized(self, reference: ImageReference) -> Image.Image:
        """An image, decoded and scaled to the size that `process` gives it; processing it again changes no pixel."""
        rows, columns = self._grid(reference.width, reference.height)
        size = (columns * self._factor, rows * self._factor)
        return _decode_image(reference).resize(size, resample=self._processor.resample)

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
        return self._pixels(_decode_image(reference))

    def _pixels(self, image: Image.Image) -> VisionInputs:
        found = self._processor(images=[image], size=self._size, return_tensors="pt")
        return VisionInputs(found["pixel_values"], grid=found["image_grid_thw"].numpy())


class TileImageProcessor(ABC):
    """Images as one or several tiles of one size; a subclass writes their tokens and cuts their pixels."""

    def __init__(self, config: PretrainedConfig, processor: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self.image_token_id: int = config.image_token_id
        self._processor = processor
        self._tokenizer = tokenizer
        self._processed = ProcessedImages(lambda reference: self._pixels(_decode_image(reference)))

    @abstractmethod
    def _tokens(self, width: int, height: int) -> list[int]:
        """Tokens of an image of this size, in place of its one pad token."""

    @abstractmethod
    def _pixels(self, image: Image.Image) -> VisionInputs:
        """Tiles of an image."""

    def write_images(self, text: str) -> str:
        """The text: the chat template writes an image's one pad token."""
        return text

    def token_count(self, width: int, height: int) -> int:
        """Number of tokens of an image in the expanded prompt."""
        return len(self._tokens(width, height))

    def feature_count(self, width: int, height: int) -> int:
        """Number of pad tokens among them."""
        return self._tokens(width, height).count(self.image_token_id)

    def expand(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        """Replace each image's one pad token by its tokens. Raises `DataError` if their numbers differ."""
        runs = [self._tokens(each.width, each.height) for each in media]
        return _replace_pads(token_ids, self.image_token_id, runs)

    def positions(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        """[L] Positions of a sequence: one each, as of text."""
        return np.arange(len(token_ids), dtype=np.int32)

    def process(self, media: Sequence[ImageReference]) -> VisionInputs:
        """Pixels of the images, in this order."""
        return _concatenate_inputs([self._processed[reference] for reference in media])

    def placeholder(self) -> VisionInputs:
        """A small black image."""
        return self._pixels(Image.new("RGB", (1, 1)))


class IdeficsImageProcessor(TileImageProcessor):
    """Images of Idefics 3 and SmolVLM: tiles with their row and column, and the whole image."""

    def __init__(self, config: PretrainedConfig, processor: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(config, processor, tokenizer)
        vision = config.vision_config
        self._features_per_tile = (vision.image_size // vision.patch_size) ** 2 // config.scale_factor**2

    def _tokens(self, width: int, height: int) -> list[int]:
        _, rows, columns = self._processor.get_number_of_image_patches(height, width)
        pads = "<image>" * self._features_per_tile
        tiles = [
            "".join(f"{_TILE_START}<row_{row + 1}_col_{column + 1}>{pads}" for column in range(columns))
            + "\n"
            for row in range(rows)
        ]
        whole = f"{_TILE_START}<global-img>{pads}{_TILE_START}"
        return self._tokenizer.encode(
            "".join(tiles) + f"\n{whole}" if rows else whole, add_special_tokens=False
        )

    def _pixels(self, image: Image.Image) -> VisionInputs:
        found = self._processor(images=[[image]], return_tensors="pt")
        return VisionInputs(
            found["pixel_values"][0], pixel_mask=found["pixel_attention_mask"][0].bool().numpy()
        )


class GemmaImageProcessor(TileImageProcessor):
    """Images of Gemma 3: one square of a fixed size, between a start and an end token and empty lines.

    The chat template writes the start token only.
    """

    def __init__(self, config: PretrainedConfig, processor: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(config, processor, tokenizer)
        if processor.do_pan_and_scan:
            raise ModelError(
                "model.path: the model's preprocessor_config.json has do_pan_and_scan: true, and Strop does not cut "
                "images of Gemma 3 into crops. Write false there, as in the published models."
            )
        self._count: int = config.mm_tokens_per_image
        ids = (config.boi_token_id, config.image_token_id, config.eoi_token_id)
        start, pad, end = (str(tokenizer.convert_ids_to_tokens(each)) for each in ids)
        self._start, self._written = start, f"\n\n{start}{pad}{end}\n\n"

    def write_images(self, text: str) -> str:
        """The text with the pad token, the end token and empty lines around each start token, as Gemma 3 has them.

        They are written before the text is encoded, because line breaks that follow each other become one token.
        """
        return text.replace(self._start, self._written)

    def _tokens(self, width: int, height: int) -> list[int]:
        return [self.image_token_id] * self._count

    def _pixels(self, image: Image.Image) -> VisionInputs:
        return VisionInputs(self._processor(images=[image], return_tensors="pt")["pixel_values"])


class InternImageProcessor(TileImageProcessor):
    """Images of InternVL 3: tiles in the grid whose aspect is nearest, and the whole image, as one run of tokens."""

    def __init__(self, config: PretrainedConfig, processor: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(config, processor, tokenizer)
        self._features_per_tile: int = config.image_seq_length
        ids = {token: tokenizer.get_vocab().get(token) for token in ("<img>", "</img>")}
        self._edges = [number for number in ids.values() if number is not None]
        if len(self._edges) != len(ids):
            raise ModelError(
                "model.path: the tokenizer has no tokens <img> and </img>, between which InternVL has an image. Use "
                "the model's own tokenizer, of the version for transformers (-hf)."
            )

    def _tokens(self, width: int, height: int) -> list[int]:
        tiles = self._processor.get_number_of_image_patches(height, width, {"crop_to_patches": True})
        start, end = self._edges
        return [start, *[self.image_token_id] * (tiles * self._features_per_tile), end]

    def _pixels(self, image: Image.Image) -> VisionInputs:
        found = self._processor(images=[image], crop_to_patches=True, return_tensors="pt")
        return VisionInputs(found["pixel_values"])


_TILE_PROCESSORS: Mapping[str, type[TileImageProcessor]] = {
    "gemma3": GemmaImageProcessor,
    "idefics3": IdeficsImageProcessor,
    "internvl": InternImageProcessor,
    "smolvlm": IdeficsImageProcessor,
}


def _replace_pads(token_ids: IntArray, pad: int, runs: Sequence[Sequence[int]]) -> IntArray:
    """Tokens in which each pad token has become a run. Raises `DataError` if their numbers differ."""
    pads = np.flatnonzero(token_ids == pad)
    if len(pads) != len(runs):
        raise DataError(
            f"The prompt has {len(pads)} image tokens, but {len(runs)} images belong to it. Each image needs one "
            'part {"type": "image"} in the messages, and the chat template must write the image token for it.'
        )
    pieces: list[IntArray] = []
    start = 0
    for position, run in zip(pads.tolist(), runs, strict=True):
        pieces += [token_ids[start:position], np.asarray(run, dtype=token_ids.dtype)]
        start = position + 1
    return np.concatenate([*pieces, token_ids[start:]])


def mrope_positions(token_ids: IntArray, image_token_id: int, grids: Sequence[tuple[int, int]]) -> IntArray:
    """[3, L] Temporal, vertical and horizontal position of each token.

    A text token has three equal positions. The tokens of an image count its rows and columns from the position
    after the text before it, and share one temporal position; the text after it continues above the largest.

    Args:
        grids: rows and columns of tokens of each image, in the order of the images.
    """
    positions = np.empty((3, len(token_ids)), dtype=np.int32)
    pads = np.flatnonzero(token_ids == image_token_id)
    start, following, used = 0, 0, 0
    for rows, columns in grids:
        first = int(pads[used])
        used += rows * columns
        end = first + rows * columns
        text = np.arange(following, following + first - start)
        positions[:, start:first] = text
        following += first - start
        positions[0, first:end] = following
        positions[1, first:end] = following + np.repeat(np.arange(rows), columns)
        positions[2, first:end] = following + np.tile(np.arange(columns), rows)
        start, following = end, following + max(rows, columns)
    positions[:, start:] = np.arange(following, following + len(token_ids) - start)
    return positions


def _decode_image(reference: ImageReference) -> Image.Image:
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


def _concatenate_inputs(inputs: Sequence[VisionInputs]) -> VisionInputs:
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
    """Processed images by digest; the least recently used are dropped above `_CACHE_BYTES`. Thread-safe."""

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
            while self._bytes > _CACHE_BYTES and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.pixel_values.nbytes
        return inputs
