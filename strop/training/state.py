"""A training engine's state as safetensors: nothing is pickled, and it comes back the same to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from strop.errors import CheckpointError


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name. A view of a larger storage is written alone."""
    save_file({name: _alone(tensor.detach()) for name, tensor in tensors.items()}, path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """On the CPU, each in storage of its own. Raises CheckpointError for a missing or damaged file."""
    try:
        return {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def rng_tensors(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random generators that training draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng(device: torch.device, states: Mapping[str, Tensor]) -> None:
    """Take back what `rng_tensors` gave."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def _alone(tensor: Tensor) -> Tensor:
    whole = tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if whole and tensor.is_contiguous() else tensor.clone(memory_format=torch.contiguous_format)
