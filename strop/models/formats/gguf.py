"""GGUF files as models: which file a path names, and how transformers reads it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strop.config.paths import gguf_file
from strop.errors import ModelError


def pretrained_source(path: str) -> dict[str, Any]:
    """Arguments of transformers' `from_pretrained` that select a model folder, a name on the Hub, or a GGUF file.

    Raises `ModelError` for a GGUF file without the package that reads it.
    """
    file = gguf_file(path)
    if file is None:
        return {
            "pretrained_model_name_or_path": str(Path(path).expanduser()) if path.startswith("~") else path
        }
    if find_spec("gguf") is None:
        raise ModelError(
            f"model.path: reading {file} needs the package gguf: pip install 'strop[gguf]'. Or name a folder with "
            "config.json and *.safetensors."
        )
    return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}


def dequantization(path: str) -> dict[str, Any]:
    """Further arguments for the weights of a GGUF file, which are converted to the requested dtype to be trained."""
    if gguf_file(path) is None:
        return {}
    from transformers import GgufConfig

    return {"quantization_config": GgufConfig(dequantize=True)}
