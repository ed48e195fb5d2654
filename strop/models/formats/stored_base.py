"""The model that an adapter is merged into, as its files have it: data type of each tensor, and exact weights.

A run may hold the frozen weights in a shorter type to save memory. Rounding them can be larger than what an adapter
changes, so that an export reads them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

import torch
from safetensors import safe_open
from torch import Tensor

from strop.config.paths import gguf_file
from strop.config.schema.model import ModelConfig
from strop.models.loading import load_config, load_weights
from strop.models.lora import merged_weights
from strop.models.meta_loading import MetaLoadingUnsupported, local_folder, tensor_files

_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
"""Data types of floating-point weights, by their names in safetensors files; others are those of quantized weights."""


@dataclass(frozen=True)
class StoredBase:
    """Data types and weights of a model's files; without them, those of the model in memory."""

    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """By name in the files."""
    default: torch.dtype | None = None
    """Data type of floating-point tensors that the files have under no such name; None keeps a tensor's own."""
    weights: Mapping[str, Tensor] | None = None
    """By Hugging Face's names, on the CPU; None where the model in memory has them exactly."""

    def dtype_of(self, name: str, tensor: Tensor) -> torch.dtype:
        """Data type of a tensor in an export."""
        if not tensor.is_floating_point():
            return tensor.dtype
        return self.dtypes.get(name, self.default or tensor.dtype)


def read_stored_base(section: ModelConfig, *, loaded: torch.dtype) -> StoredBase:
    """Read the data types of a model's files, and its weights if those in memory, of the type `loaded`, are shorter.

    Quantized weights stay as they are in memory: an adapter was trained on them. Raises ModelError where the files
    cannot be read any more.
    """
    if getattr(load_config(section), "quantization_config", None) is not None:
        return StoredBase(default=loaded)
    dtypes = {} if gguf_file(section.path) is not None else _stored_dtypes(section.path)
    widest = reduce(torch.promote_types, dtypes.values()) if dtypes else getattr(torch, section.dtype)
    weights = None
    if section.quantization is None and torch.promote_types(loaded, widest) != loaded:
        exact = section.model_copy(
            update={"dtype": str(widest).removeprefix("torch."), "compute_dtype": None, "lora": None}
        )
        weights = dict(merged_weights(load_weights(exact)))
    return StoredBase(dtypes, widest, weights)


def _stored_dtypes(path: str) -> dict[str, torch.dtype]:
    """Data types of a model folder's floating-point tensors; empty for files that cannot be listed."""
    try:
        files = tensor_files(local_folder(path))
    except MetaLoadingUnsupported:
        return {}
    found: dict[str, torch.dtype] = {}
    for file in sorted(set(files.values())):
        with safe_open(file, framework="pt") as opened:
            names = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
        found |= {name: _FLOATS[kind] for name, kind in names.items() if kind in _FLOATS}
    return found
