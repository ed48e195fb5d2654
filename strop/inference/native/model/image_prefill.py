"""Prefill of prompts with images through Hugging Face's vision tower and decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel

from strop.inference.native.model.left_padding import LeftPadded
from strop.inference.native.model.runner import Prompt
from strop.models.packed_attention.forward import decoder_of
from strop.models.vision.embedding import decoder_mask, embed_images
from strop.protocols import ImageProcessor
from strop.transfers import to_device
from strop.types import BoolArray, VisionInputs


@dataclass(frozen=True, slots=True)
class PromptImages:
    """Images of padded prompts."""

    inputs: VisionInputs
    """Pixels of all images, in the order of the rows."""
    is_image: BoolArray
    """[n, T]"""
    positions: torch.Tensor
    """[1 or 3, n, T] int64"""


def prompt_images(prompts: Sequence[Prompt], batch: LeftPadded, processor: ImageProcessor) -> PromptImages:
    """The images of prompts, and the positions of their tokens."""
    rows, width = batch.token_ids.shape
    pieces = [np.atleast_2d(processor.positions(prompt.token_ids, prompt.media)) for prompt in prompts]
    positions = np.zeros((len(pieces[0]), rows, width), np.int64)
    is_image = np.zeros((rows, width), np.bool_)
    for row, (prompt, own) in enumerate(zip(prompts, pieces, strict=True)):
        positions[:, row, width - own.shape[1] :] = own
        if prompt.media:
            is_image[row, width - own.shape[1] :] = prompt.token_ids == processor.image_token_id
    return PromptImages(
        processor.process([reference for prompt in prompts for reference in prompt.media]),
        is_image,
        to_device(positions, batch.token_ids.device),
    )


def image_logits(
    model: PreTrainedModel, batch: LeftPadded, images: PromptImages, cache: DynamicCache
) -> torch.Tensor:
    """[n, V] logits after each prompt, which is appended to the cache."""
    positions = images.positions if len(images.positions) > 1 else images.positions[0]
    inputs = embed_images(model, batch.token_ids, images.is_image, images.inputs)
    context: dict[str, Any] = {"position_ids": positions, "past_key_values": cache}
    mask = decoder_mask(model, inputs, batch.mask, images.is_image, **context)
    output = decoder_of(model)(use_cache=True, attention_mask=mask, **inputs, **context)
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    logits: torch.Tensor = head(output.last_hidden_state[:, -1])
    return logits
