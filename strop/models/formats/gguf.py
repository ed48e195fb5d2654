"""GGUF files as models: which file a path names, and how transformers reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.gguf_reader import read_gguf
from strop.config.paths import gguf_file
from strop.errors import ModelError
from strop.models.hub import cached_folder, is_read_from_cache

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

    with gguf_reading(path):
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
        if is_read_from_cache(path):  # the folder, as transformers asks for some files of a name in any case
            return {
                "pretrained_model_name_or_path": str(cached_folder(path) or path),
                "local_files_only": True,
            }
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
def gguf_reading(path: str) -> Iterator[None]:
    """If the path is a GGUF file, let transformers read its fields once per process, without a progress bar in logs.

    transformers reads them for the configuration, for the tokenizer, and twice for the weights, and builds the table of
    tensor names once per module: 10 s of the 12 s that a model of 135M with a vocabulary of 49,000 took. It has no
    switch for either.
    """
    if gguf_file(path) is None or find_spec("gguf") is None:
        yield
        return
    import gguf
    from transformers import modeling_gguf_pytorch_utils

    replaced: dict[Any, dict[str, Any]] = {
        modeling_gguf_pytorch_utils: {
            "tqdm": partial(modeling_gguf_pytorch_utils.tqdm, disable=None, leave=False)  # type: ignore[attr-defined]
        },
        gguf: {"GGUFReader": read_gguf, "get_tensor_name_map": _tensor_names},
    }
    own = {module: {name: getattr(module, name) for name in names} for module, names in replaced.items()}
    for module, names in replaced.items():
        vars(module).update(names)
    try:
        yield
    finally:
        for module, names in own.items():
            vars(module).update(names)


@cache
def _tensor_names(architecture: Any, layers: int) -> Any:
    from gguf.tensor_mapping import get_tensor_name_map

    return get_tensor_name_map(architecture, layers)


def dequantization(path: str) -> dict[str, Any]:
    """Further arguments for the weights of a GGUF file, which are converted to the requested dtype to be trained."""
    if gguf_file(path) is None:
        return {}
    from transformers import GgufConfig

    return {"quantization_config": GgufConfig(dequantize=True)}
