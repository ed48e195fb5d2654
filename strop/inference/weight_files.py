"""Reading weights for an inference engine from the safetensors files of a model folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from strop.errors import ModelError


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
