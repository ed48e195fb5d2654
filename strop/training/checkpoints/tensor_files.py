"""Tensors and random states as safetensors files, which are read back bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from strop.errors import CheckpointError
from strop.models.formats.safetensors_files import save_tensors


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name, and metadata. Of a view of a larger storage, only the view is written."""
    named = {name: _alone(tensor.detach()) for name, tensor in tensors.items()}
    save_tensors(named, path, metadata)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a file by name, on the CPU, each in its own storage.

    Raises CheckpointError for a missing or damaged file.
    """
    try:
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def get_rng_state(device: torch.device) -> dict[str, Tensor]:
    """States of the torch random generators that training uses."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_state(device: torch.device, states: Mapping[str, Tensor]) -> None:
    """Restore states from `get_rng_state`."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _alone(tensor: Tensor) -> Tensor:
    owns_storage = tensor.untyped_storage().nbytes() == tensor.nbytes
    return (
        tensor
        if owns_storage and tensor.is_contiguous()
        else tensor.clone(memory_format=torch.contiguous_format)
    )
