"""The vision tower's part of a forward pass: features of images, in place of the embeddings of their tokens.

Positions, windows and padding of images are computed on the host, not read from the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from strop.config.model_files import IMAGE_FAMILIES
from strop.errors import ModelError
from strop.transfers import to_device
from strop.types import BoolArray, IndexArray, VisionInputs

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
        _use_positions(decoder)
    if base.config.model_type in _WITH_TILE_MASKS:
        _use_tile_plans(vision_tower(base))


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


def grid_arguments(tower: Any, grid: IndexArray, device: torch.device) -> dict[str, Any]:
    """Arguments of a tower of the Qwen-VL families that it would derive from the grid [images, 3] of its images.

    Boundaries of images and windows stay on the host, where the tower's attention is divided by them.
    """
    return {
        name: value if name.startswith("cu_") else to_device(value, device)
        for name, value in grid_plan(tower, grid).items()
    }


def grid_plan(tower: Any, grid: IndexArray) -> dict[str, np.ndarray[Any, Any]]:
    """The arguments on the host, by the names of transformers."""
    patches, merge = torch.from_numpy(grid), int(tower.spatial_merge_size)
    found = {
        "position_ids": get_vision_position_ids(patches, merge),
        "cu_seqlens": get_vision_cu_seqlens(patches),
    }
    if hasattr(tower, "window_size"):
        found["window_index"], found["cu_window_seqlens"] = get_vision_window_index(
            patches, spatial_merge_size=merge, window_size=tower.window_size, patch_size=tower.patch_size
        )
    if hasattr(tower, "num_grid_per_side"):
        found["interp_indices"], found["interp_weights"] = get_vision_interpolation_indices_and_weights(
            patches,
            num_grid_per_side=tower.num_grid_per_side,
            mode=tower.interpolation_mode,
            align_corners=tower.interpolation_align_corners,
            spatial_merge_size=merge,
        )
    return {name: value.numpy() for name, value in found.items()}


def _use_tile_plans(tower: Any) -> None:
    """Have a tower of Idefics 3 or SmolVLM take positions and mask of patches from `tile_states`, so that hooks of the
    tower and of its embeddings run; without them its forward passes stay those of transformers."""
    tower.forward = MethodType(_tower_forward, tower)
    tower.embeddings.forward = MethodType(_embeddings_forward, tower.embeddings)


def tile_states(tower: Any, pixels: Tensor, pixel_mask: BoolArray) -> Tensor:
    """[tiles, patches, hidden] States of a tower with `_use_tile_plans`, by masks [tiles, height, width]."""
    size = tower.patch_size
    tiles, height, width = pixel_mask.shape
    patches = pixel_mask.reshape(tiles, height // size, size, width // size, size)
    is_real: BoolArray = np.logical_or.reduce(patches, axis=(2, 4))
    positions = to_device(tile_positions(tower.embeddings, is_real, pixels.dtype), pixels.device)
    attention_mask = None
    if not is_real.all():
        is_padding = to_device(~is_real.reshape(tiles, 1, 1, -1), pixels.device)
        attention_mask = torch.zeros_like(is_padding, dtype=pixels.dtype).masked_fill(
            is_padding, torch.finfo(pixels.dtype).min
        )
    states: Tensor = tower(pixels, position_ids=positions, attention_mask=attention_mask)
    return states


def tile_positions(embeddings: Any, is_real: BoolArray, dtype: torch.dtype) -> IndexArray:
    """[tiles, patches] Positions of the patches of tiles, of which some are padding [tiles, rows, columns].

    They are those of the embeddings' own forward pass in this dtype, of pixels that do not matter.
    """
    found: list[Tensor] = []

    def record(position_ids: Tensor) -> float:
        found.append(position_ids)
        return 0.0

    size = embeddings.patch_size
    stub = SimpleNamespace(
        patch_size=size,
        num_patches_per_side=embeddings.num_patches_per_side,
        patch_embedding=lambda pixels: pixels[..., ::size, ::size],
        position_embedding=record,
    )
    tiles, rows, columns = is_real.shape
    pixels = torch.zeros(tiles, 1, rows * size, columns * size, dtype=dtype)
    type(embeddings).forward(stub, pixels, torch.from_numpy(is_real))
    return found[0].numpy()


def _tower_forward(
    self: Any,
    pixel_values: Tensor,
    *others: Any,
    position_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> Any:
    if position_ids is None:
        return type(self).forward(self, pixel_values, *others, **options)
    embedded = self.embeddings(pixel_values, position_ids=position_ids)
    encoded = self.encoder(inputs_embeds=embedded, attention_mask=attention_mask)
    states: Tensor = self.post_layernorm(encoded.last_hidden_state)
    return states


def _embeddings_forward(
    self: Any, pixel_values: Tensor, *others: Any, position_ids: Tensor | None = None, **options: Any
) -> Any:
    if position_ids is None:
        return type(self).forward(self, pixel_values, *others, **options)
    patches = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
    embedded: Tensor = patches + self.position_embedding(position_ids)
    return embedded


def add_at_positions(hidden: Tensor, positions: Tensor, features: Tensor) -> Tensor:
    """[n, L, H] hidden states plus features [N, H] at positions [N] of their n L tokens, or where a mask [n, L] is
    true, as in transformers' own forward pass."""
    if positions.dtype == torch.bool:
        positions = positions.flatten().nonzero().squeeze(1)
    flat = hidden.flatten(0, 1)
    changed = flat.index_select(0, positions) + features.to(hidden)
    return flat.index_copy(0, positions, changed).view_as(hidden)


def _use_positions(decoder: nn.Module) -> None:
    """Have a decoder of Qwen3-VL take positions as `visual_pos_masks`; the index of a mask waits for the device."""
    decoder._deepstack_process = add_at_positions  # type: ignore[assignment]
