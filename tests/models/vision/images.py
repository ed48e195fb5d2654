"""Tiny models for images, image files, and prompts with images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from strop.config.schema.model import ModelConfig
from strop.models.loading import load_model
from strop.models.vision.image_processor import load_image_processor
from strop.models.vision.tiny import make_vision_model
from strop.protocols import ImageProcessor
from strop.types import Experience, ImageReference, IntArray
from tests.models.models import experience

GRID_FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
TILE_FAMILIES = ("idefics3", "smolvlm", "gemma3", "internvl")
FAMILIES = (*GRID_FAMILIES, *TILE_FAMILIES)


@cache
def vision_model(family: str) -> Path:
    """Folder of a tiny model of two layers; made once per process."""
    corpus = ["What is shown here? The number is 34."] * 20
    return make_vision_model(Path(mkdtemp()) / family, corpus, family=family)


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(vision_model(family))


def image(folder: Path, width: int, height: int, seed: int = 0) -> ImageReference:
    """A file with random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    path = folder / f"{width}x{height}-{seed}.png"
    Image.fromarray(pixels).save(path)
    return ImageReference(hashlib.sha256(path.read_bytes()).hexdigest(), path, width, height)


def transformers_inputs(
    family: str, processor: ImageProcessor, token_ids: torch.Tensor, media: Sequence[ImageReference]
) -> dict[str, Any]:
    """Arguments for the images of one sequence [1, L] in the forward pass of transformers' model."""
    if not media:
        return {}
    found = processor.process(media)
    is_image = (token_ids == processor.image_token_id).int()
    if found.grid is not None:
        own = {"image_grid_thw": torch.from_numpy(found.grid), "mm_token_type_ids": is_image}
        return {"pixel_values": found.pixel_values, **own}
    if found.pixel_mask is not None:
        own = {"pixel_attention_mask": torch.from_numpy(found.pixel_mask)[None]}
        return {"pixel_values": found.pixel_values[None], **own}
    own = {"token_type_ids": is_image} if family == "gemma3" else {}
    return {"pixel_values": found.pixel_values, **own}


def prompt(
    tokenizer: PreTrainedTokenizerBase, processor: ImageProcessor, media: list[ImageReference]
) -> IntArray:
    """The expanded prompt of one question after each image."""
    content = [part for _ in media for part in ({"type": "image"}, {"type": "text", "text": "What is it?"})]
    messages: list[Any] = [{"role": "user", "content": content}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    text = processor.write_images(str(text))
    ids = np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
    return processor.expand(ids, media)


@cache
def processor_of(family: str) -> ImageProcessor:
    return load_image_processor(str(vision_model(family)), tokenizer_of(family))


def loaded(family: str, **fields: Any) -> PreTrainedModel:
    """A model whose weights are large enough for images and attention to matter."""
    model = load_model(ModelConfig(path=str(vision_model(family)), **fields), device="cpu")
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def experiences_with_images(family: str, folder: Path) -> list[Experience]:
    """A group with two images, one with one, a text-only one, and a rollout with an image in its second turn."""
    tokenizer, processor = tokenizer_of(family), processor_of(family)
    random = np.random.default_rng(0)

    def answer(count: int) -> list[int]:
        return random.integers(5, 60, count).tolist()

    two = [image(folder, 40, 30), image(folder, 100, 50)]
    one = [image(folder, 60, 60)]
    found = []
    for group, media, lengths in (("two", two, (5, 3, 8)), ("one", one, (4, 4)), ("none", [], (3, 2))):
        ids = prompt(tokenizer, processor, media) if media else np.arange(20, 30)
        found += [experience(ids, answer(n), group=group, media=tuple(media)) for n in lengths]
    first, second = prompt(tokenizer, processor, one), prompt(tokenizer, processor, two[:1])
    tokens = np.concatenate([first, answer(4), second, answer(3)])
    mask = np.zeros(len(tokens), dtype=bool)
    mask[len(first) : len(first) + 4] = mask[-3:] = True
    tools = experience(tokens[:-3], tokens[-3:], group="tools", loss_mask=mask, media=(one[0], two[0]))
    return [*found, tools]
