"""The vision tower's part of a forward pass: features of images, in place of the embeddings of their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from strop.config.model_files import IMAGE_FAMILIES
from strop.errors import ModelError
from strop.models.vision.tower_plans import (
    grid_arguments,
    tile_states,
    use_positions,
    use_tile_plans,
)
from strop.transfers import to_device
from strop.types import BoolArray, VisionInputs

_PROJECTIONS = ("connector", "multi_modal_projector")
"""Names of the projection to the decoder's width, where it is a module of its own."""
_WITH_TILE_MASKS = ("idefics3", "smolvlm")
"""Families whose tiles have masks, because some have padding."""


def takes_images(config: PretrainedConfig) -> bool:
    """Whether a model is of a family for which Strop accepts images."""
    return config.model_type in IMAGE_FAMILIES


def vision_tower(base: PreTrainedModel) -> nn.Module:
    """The module that encodes images; for the Qwen-VL families with its projection to the decoder's width."""
    inner = _inner_model(base)
    names = ("visual", "vision_model", "vision_tower")
    tower: nn.Module = next(getattr(inner, name) for name in names if hasattr(inner, name))
    return tower


def vision_modules(base: PreTrainedModel) -> list[nn.Module]:
    """The tower and, where that is a module of its own, the projection after it."""
    inner = _inner_model(base)
    return [vision_tower(base), *(getattr(inner, name) for name in _PROJECTIONS if hasattr(inner, name))]


def sees_whole_images(config: PretrainedConfig) -> bool:
    """Whether the tokens of an image attend to all tokens of it, also later ones (Gemma 3, arXiv 2503.19786)."""
    return config.model_type == "gemma3"


def decoder_mask(
    base: PreTrainedModel, inputs: Mapping[str, Any], mask: Tensor, is_image: BoolArray, **context: Any
) -> Any:
    """Attention mask of the decoder for padded sequences with images.

    Args:
        inputs: what `embed_images` returns.
        mask: [n, L] 0 for padding.
        is_image: [n, L] the pad tokens of the images.
        context: `position_ids` and `past_key_values` of the decoder.
    """
    if not sees_whole_images(base.config):
        return mask
    return base.create_masks_for_generate(  # type: ignore[operator]
        config=base.config,
        inputs_embeds=inputs["inputs_embeds"],
        attention_mask=mask,
        token_type_ids=to_device(is_image.astype(np.int64), mask.device),
        **context,
    )


def use_host_plans(base: PreTrainedModel) -> None:
    """Have a model take from the host what it would read from the device to embed images; once, before the first
    `embed_images`. Its own forward passes stay possible."""
    if not takes_images(base.config):
        return
    if hasattr(decoder := base.get_decoder(), "_deepstack_process"):  # type: ignore[no-untyped-call]
        use_positions(decoder)
    if base.config.model_type in _WITH_TILE_MASKS:
        use_tile_plans(vision_tower(base))


def embed_images(
    base: PreTrainedModel, token_ids: Tensor, is_image: BoolArray, images: VisionInputs
) -> dict[str, Any]:
    """Arguments of the decoder in place of `input_ids`, of a model with `use_host_plans`.

    Without a token in `is_image`, as for the placeholder of a rank without images, the features contribute zero:
    the tower's parameters have a gradient, of zero.

    Args:
        token_ids: [n, L]
        is_image: [n, L] the pad tokens of the images, on the host.

    Raises `ModelError` for a model without a vision tower.
    """
    if not takes_images(base.config):
        raise ModelError(
            f"A micro-batch has images, but {type(base).__name__} takes none. Use one of the families "
            f"{', '.join(sorted(IMAGE_FAMILIES))}."
        )
    embeddings = base.get_input_embeddings()(token_ids)
    features, deepstack = _features(base, images)
    if not is_image.any():
        unused = sum(each.sum() for each in (features, *deepstack))
        return {"inputs_embeds": embeddings + 0.0 * unused}
    positions = to_device(np.flatnonzero(is_image), embeddings.device)
    flat = embeddings.flatten(0, 1).index_copy(0, positions, features.to(embeddings.dtype))
    embedded = flat.view_as(embeddings)
    if not deepstack:
        return {"inputs_embeds": embedded}
    return {"inputs_embeds": embedded, "visual_pos_masks": positions, "deepstack_visual_embeds": deepstack}


def _features(base: PreTrainedModel, images: VisionInputs) -> tuple[Tensor, list[Tensor]]:
    """[features, H] of all images in order, and those that later layers add (arXiv 2406.04334), one per layer.

    A frozen tower runs without a gradient.
    """
    device = base.device
    pixels = to_device(images.pixel_values, device)
    inner = _inner_model(base)
    frozen = not any(p.requires_grad for module in vision_modules(base) for p in module.parameters())
    with torch.no_grad() if frozen else nullcontext():
        if images.grid is not None:
            arguments = grid_arguments(vision_tower(base), images.grid, device)
            found = inner.get_image_features(pixels, images.grid, return_dict=True, **arguments)
            features = torch.cat(tuple(found.pooler_output))
            layers = getattr(found, "deepstack_features", None) or ()
            return features, [torch.cat(tuple(layer)) for layer in layers]
        if images.pixel_mask is None:
            return inner.get_image_features(pixels, return_dict=True).pooler_output.flatten(0, 1), []
        states = tile_states(vision_tower(base), pixels.to(inner.dtype), images.pixel_mask)
        return inner.connector(states).flatten(0, 1), []


def _inner_model(base: PreTrainedModel) -> Any:
    """The model without its language-model head, if it has one."""
    return getattr(base, "model", base)
