"""Image processors of the families that give every tile of an image the same number of tokens, in one dimension."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from strop.errors import DataError, ModelError
from strop.models.vision.pixels import ProcessedImages, concatenate_inputs, decode_image
from strop.types import ImageReference, IntArray, VisionInputs

_TILE_START = "<fake_token_around_image>"
"""Token before each tile of Idefics 3 and SmolVLM, and after the last."""


class TileImageProcessor(ABC):
    """Images as one or several tiles of one size; a subclass writes their tokens and cuts their pixels."""

    def __init__(self, config: PretrainedConfig, processor: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self.image_token_id: int = config.image_token_id
        self._processor = processor
        self._tokenizer = tokenizer
        self._processed = ProcessedImages(lambda reference: self._pixels(decode_image(reference)))

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
        return replace_pads(token_ids, self.image_token_id, runs)

    def positions(self, token_ids: IntArray, media: Sequence[ImageReference]) -> IntArray:
        """[L] Positions of a sequence: one each, as of text."""
        return np.arange(len(token_ids), dtype=np.int32)

    def process(self, media: Sequence[ImageReference]) -> VisionInputs:
        """Pixels of the images, in this order."""
        return concatenate_inputs([self._processed[reference] for reference in media])

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


def replace_pads(token_ids: IntArray, pad: int, runs: Sequence[Sequence[int]]) -> IntArray:
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
