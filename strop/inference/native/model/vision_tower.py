"""Images in the native engine: Hugging Face's vision tower on its weights, and prefill with images."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from strop.errors import ModelError
from strop.inference.native.model.positions import LeftPadded
from strop.inference.native.model.runner import Prompt
from strop.inference.native.model.weights import StackedWeight
from strop.models.loading import language_model_class
from strop.models.packed_attention.forward import decoder_of
from strop.models.vision.embedding import decoder_mask, embed_images, grid_arguments, vision_tower
from strop.protocols import ImageProcessor
from strop.transfers import to_device
from strop.types import BoolArray, IntArray, VisionInputs

_PREFIX = "model.visual."


@dataclass(frozen=True, slots=True)
class EmbeddedPrompts:
    """Input of the decoder's layers for prompts, one after the other."""

    hidden: torch.Tensor
    """[tokens, hidden]"""
    positions: Sequence[IntArray]
    """[L] or [3, L] of each prompt."""
    image_rows: torch.Tensor | None = None
    """[features] int64 Tokens to which `layer_features` are added."""
    layer_features: Sequence[torch.Tensor] = ()
    """[features, hidden] after each of the first layers (arXiv 2406.04334)."""


class NativeVisionTower:
    """The module that encodes images, on weights of the engine."""

    def __init__(self, config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> None:
        """A tower without weights."""
        self._tower = _empty_tower(config, device, dtype)
        self._parameters = {f"{_PREFIX}{name}": value for name, value in self._tower.named_parameters()}
        self._shapes = {name: value.shape for name, value in self._parameters.items()}
        self.weights = {name: StackedWeight((name,), device, dtype) for name in self._parameters}

    def use_weights(self) -> None:
        """Have the module compute with the weights that have been set. Raises `ModelError` for another shape."""
        for name, parameter in self._parameters.items():
            weight = self.weights[name]
            if not weight.is_complete:
                parameter.data = parameter.data.new_empty(0)
                continue
            if weight.tensor.shape != self._shapes[name]:
                found, needed = tuple(weight.tensor.shape), tuple(self._shapes[name])
                raise ModelError(f"weight {name!r} has shape {found}; the model needs {needed}")
            parameter.data = weight.tensor

    def embed(
        self, prompts: Sequence[Prompt], hidden: torch.Tensor, processor: ImageProcessor
    ) -> EmbeddedPrompts:
        """Put the features of the prompts' images into the embeddings [tokens, hidden] of their pad tokens."""
        inputs = processor.process([reference for prompt in prompts for reference in prompt.media])
        assert inputs.grid is not None
        pixels = to_device(inputs.pixel_values, hidden.device).to(self._tower.dtype)
        arguments = grid_arguments(self._tower, inputs.grid, hidden.device)
        found = self._tower(pixels, grid_thw=inputs.grid, return_dict=True, **arguments)
        # In a prompt without images the pad token is an ordinary one.
        pads = [(p.token_ids == processor.image_token_id) & bool(p.media) for p in prompts]
        image_rows = to_device(np.flatnonzero(np.concatenate(pads)), hidden.device)
        return EmbeddedPrompts(
            hidden.index_copy(0, image_rows, found.pooler_output.to(hidden.dtype)),
            [_positions(prompt, processor) for prompt in prompts],
            image_rows,
            getattr(found, "deepstack_features", None) or (),
        )


def _positions(prompt: Prompt, processor: ImageProcessor) -> IntArray:
    """[3, L]"""
    length = len(prompt.token_ids)
    found = (
        processor.positions(prompt.token_ids, prompt.media)
        if prompt.media
        else np.arange(length, dtype=np.int32)
    )
    return np.broadcast_to(found, (3, length))


def _empty_tower(config: PretrainedConfig, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    with torch.device("meta"):
        kind = type(vision_tower(language_model_class(config).from_config(config)))
    own = copy.deepcopy(config.vision_config)
    own._attn_implementation = "sdpa"
    with no_init_weights(), torch.device(device):
        tower: PreTrainedModel = kind._from_config(own, dtype=dtype)  # type: ignore[attr-defined]
    tower.requires_grad_(False)
    tower.train(False)
    return tower


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
