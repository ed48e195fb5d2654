"""Positions, windows and padding of images for vision towers, computed on the host, not read from the device."""

from __future__ import annotations

from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from strop.transfers import to_device
from strop.types import BoolArray, IndexArray


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


def use_tile_plans(tower: Any) -> None:
    """Have a tower of Idefics 3 or SmolVLM take positions and mask of patches from `tile_states`, so that hooks of the
    tower and of its embeddings run; without them its forward passes stay those of transformers."""
    tower.forward = MethodType(_tower_forward, tower)
    tower.embeddings.forward = MethodType(_embeddings_forward, tower.embeddings)


def tile_states(tower: Any, pixels: Tensor, pixel_mask: BoolArray) -> Tensor:
    """[tiles, patches, hidden] States of a tower with `use_tile_plans`, of tiles with a mask [tiles, height, width]."""
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


def use_positions(decoder: nn.Module) -> None:
    """Have a decoder of Qwen3-VL take positions as `visual_pos_masks`; the index of a mask waits for the device."""
    decoder._deepstack_process = add_at_positions  # type: ignore[assignment]
