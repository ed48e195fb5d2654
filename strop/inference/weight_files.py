"""Safetensors files from which an inference engine loads weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.core_model_loading import revert_weight_conversion

from strop.errors import ModelError
from strop.workers.shared_file import SharedFile
from strop.workers.start import WorkerPlacement

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Fields of configurations with the number of experts of a layer."""


def share_weights(weights: Iterable[tuple[str, torch.Tensor]], placement: WorkerPlacement) -> SharedFile:
    """A safetensors file with these tensors in shared memory, for readers of a placement."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
    size = sum(tensor.nbytes for tensor in tensors.values())
    return SharedFile(partial(save_file, tensors), size, placement)


def read_weights(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a safetensors file, or of all `*.safetensors` files in a folder, one at a time.

    Raises `ModelError` for a folder without such files, and for damaged files.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise ModelError(f"{path}: there is no *.safetensors file in this folder")
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  (safe_open is not a dict)
                    yield name, tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file} cannot be read as safetensors: {error}") from error


def checkpoint_weights(
    weights: Iterable[tuple[str, torch.Tensor]], config: PretrainedConfig
) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights under the names of a checkpoint, which serving libraries read.

    A model in transformers has all experts of a layer in one tensor; a checkpoint has them one by one. The weights of a
    model without experts are passed on one at a time.
    """
    text = config.get_text_config()
    if not any(getattr(text, count, None) for count in _EXPERT_COUNTS):
        yield from weights
        return
    tensors = dict(weights)
    if any(".experts." in name and tensor.dim() == 3 for name, tensor in tensors.items()):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        tensors = revert_weight_conversion(model, tensors)
    yield from tensors.items()
