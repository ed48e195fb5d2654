"""Adapters in PEFT's format as low-rank updates, for an engine that applies them to a model without wrapping it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from peft import load_peft_weights
from safetensors import SafetensorError

from strop.config.peft_adapter import read_adapter_options
from strop.errors import ModelError
from strop.protocols import LowRankUpdate, SharedWeights, UnmergedWeights

_FACTOR = re.compile(r"^(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<factor>[AB])(?:\.default)?\.weight$")


def with_adapter(weights: SharedWeights, folder: Path, where: str) -> SharedWeights:
    """A model's weights with the adapter of a PEFT folder; the model's own tensors are shared.

    `where` names the adapter in messages. Raises `ModelError` for a folder without an adapter, and for one that is not
    of this model.
    """
    updates = _read_updates(folder, where, weights.device, weights.dtype)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.tensors()}
    for name, update in updates.items():
        expected = (update.b.shape[0], update.a.shape[1])
        if shapes.get(name) != expected:
            found = shapes.get(name, "none of this name")
            raise ModelError(
                f"{where}: the adapter in {folder} has an update of {name} with the shape {expected}, and the model's "
                f"weight is {found}. Write an adapter that was trained on this model."
            )
    return SharedWeights(
        config=weights.config,
        generation_config=weights.generation_config,
        device=weights.device,
        dtype=weights.dtype,
        tensors=lambda: _merged(weights, updates),
        image_processor=weights.image_processor,
        unmerged=UnmergedWeights(weights.tensors, updates),
    )


def _read_updates(
    folder: Path, where: str, device: torch.device, dtype: torch.dtype
) -> Mapping[str, LowRankUpdate]:
    options = read_adapter_options(folder, where)
    try:
        tensors = load_peft_weights(str(folder), device="cpu")
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(f"{where}: {folder} has no adapter in PEFT's format: {error}") from error
    factors: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if (match := _FACTOR.match(name)) is None or tensor.ndim != 2:
            raise ModelError(
                f"{where}: the adapter in {folder} has {name}, which is no factor of a linear layer. Merge it into the "
                "model (merge_and_unload and save_pretrained of PEFT), and serve that folder."
            )
        factors.setdefault(match["module"], {})[match["factor"]] = tensor.to(device, dtype)
    if incomplete := sorted(module for module, pair in factors.items() if len(pair) < 2):
        raise ModelError(f"{where}: the adapter in {folder} has one factor only of {incomplete[0]}.")
    return {
        f"{module}.weight": LowRankUpdate(pair["A"], pair["B"], options.scale(module, len(pair["A"])))
        for module, pair in factors.items()
    }


def _merged(
    weights: SharedWeights, updates: Mapping[str, LowRankUpdate]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in weights.tensors():
        update = updates.get(name)
        yield name, tensor if update is None else tensor + update.scale * (update.b @ update.a)
