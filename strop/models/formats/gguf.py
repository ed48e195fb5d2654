"""GGUF files as models: which file a path names, and how transformers reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.paths import gguf_file
from strop.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def read_config(path: str, *, trust_remote_code: bool) -> PreTrainedConfig:
    """The configuration of a model folder, of a name on the Hub, or in a GGUF file, which takes seconds to read and is
    read once per process."""
    file = gguf_file(path)
    if file is None:
        return _read_config(path, trust_remote_code)
    written = file.stat()
    return deepcopy(_read_gguf_config(path, trust_remote_code, file, written.st_mtime_ns, written.st_size))


def _read_config(path: str, trust_remote_code: bool) -> PreTrainedConfig:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(**pretrained_source(path), trust_remote_code=trust_remote_code)


@cache
def _read_gguf_config(
    path: str, trust_remote_code: bool, file: Path, written_at: int, size: int
) -> PreTrainedConfig:
    return _read_config(path, trust_remote_code)


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


@contextmanager
def progress_in_terminals_only() -> Iterator[None]:
    """Keep the progress bar of transformers' conversion of a GGUF file out of logs; transformers has no switch."""
    from transformers import modeling_gguf_pytorch_utils

    names = vars(modeling_gguf_pytorch_utils)
    progress_bar = names["tqdm"]
    names["tqdm"] = partial(progress_bar, disable=None, leave=False)
    try:
        yield
    finally:
        names["tqdm"] = progress_bar


def dequantization(path: str) -> dict[str, Any]:
    """Further arguments for the weights of a GGUF file, which are converted to the requested dtype to be trained."""
    if gguf_file(path) is None:
        return {}
    from transformers import GgufConfig

    return {"quantization_config": GgufConfig(dequantize=True)}
