"""Reader of the JSON files of a model folder, which checks the types and sizes of what Strop and transformers use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from strop.config.redact import redacted_repr
from strop.errors import ModelError

_GENERATION_CONFIG = "generation_config.json"
_MAX_FAULTS = 3
"""Number of faults of a folder's files that a message lists."""

Layers = Annotated[int, Field(gt=0, le=2000)]
Width = Annotated[int, Field(gt=0, le=10_000_000)]
TokenId = Annotated[int, Field(ge=-1, le=100_000_000)]
Positive = Annotated[float, Field(gt=0)]


class _File(BaseModel):
    """Known values of a file; a model's class may read others."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())


class _Decoder(_File):
    """Sizes of a decoder; what a file leaves out has the default of its family."""

    num_hidden_layers: Layers | None = None
    hidden_size: Width | None = None
    intermediate_size: Width | list[Width] | None = None
    num_attention_heads: Width | list[Width] | None = None
    num_key_value_heads: Width | list[Width] | None = None
    head_dim: Width | None = None
    vocab_size: Width | None = None
    max_position_embeddings: Width | None = None
    rms_norm_eps: Positive | None = None
    attention_dropout: Annotated[float, Field(ge=0, le=1)] | None = None


class _Config(_Decoder):
    """`config.json`."""

    model_type: str | None = None
    architectures: list[str] | None = None
    text_config: _Decoder | None = None
    eos_token_id: TokenId | list[TokenId] | None = None
    bos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | list[TokenId] | None = None


class _GenerationConfigFile(_File):
    """`generation_config.json`."""

    eos_token_id: TokenId | list[TokenId] | None = None
    bos_token_id: TokenId | list[TokenId] | None = None
    pad_token_id: TokenId | list[TokenId] | None = None


class _TokenizerConfig(_File):
    """`tokenizer_config.json`."""

    model_max_length: int | float | None = None
    chat_template: str | list[dict[str, str]] | dict[str, str] | None = None
    tokenizer_class: str | None = None
    added_tokens_decoder: dict[str, dict[str, Any]] | None = None
    padding_side: Literal["left", "right"] | None = None
    truncation_side: Literal["left", "right"] | None = None


class _Index(_File):
    """`model.safetensors.index.json`."""

    weight_map: dict[str, str]


_FILES: dict[str, type[_File]] = {
    "config.json": _Config,
    _GENERATION_CONFIG: _GenerationConfigFile,
    "model.safetensors.index.json": _Index,
    "tokenizer_config.json": _TokenizerConfig,
}


def check_model_files(path: str, key: str = "model.path") -> None:
    """Raise `ModelError` for a local folder whose JSON files have values that no model has. Of a damaged
    generation_config.json transformers would say nothing, and responses would not end at its stop tokens."""
    folder = Path(path).expanduser()
    if faults := list(islice(value_faults(folder), _MAX_FAULTS)) if folder.is_dir() else []:
        raise ModelError(f"{key}: {' '.join(faults)}")


def value_faults(folder: Path) -> Iterator[str]:
    """A sentence for each value that no model has, and for each JSON file of a folder that cannot be read."""
    for fault in _file_faults(folder):
        is_optional = _GENERATION_CONFIG in fault
        instead = ", or delete it to use the values of config.json" if is_optional else ""
        yield f"{fault}. Restore the file{instead}."


def _file_faults(folder: Path) -> Iterator[str]:
    """A sentence without a mark at its end for each value that no model has, and for each file that is not JSON."""
    for name, kind in _FILES.items():
        file = folder / name
        if not file.is_file():
            continue
        try:
            kind.model_validate(json.loads(file.read_bytes()))
        except ValidationError as error:
            yield from _value_faults(file, error)
        except (OSError, ValueError, RecursionError) as error:
            yield f"{file} cannot be read, or is no JSON object ({type(error).__name__}: {error})"


def _value_faults(file: Path, error: ValidationError) -> Iterator[str]:
    """One sentence for each value, of which a union of types has several errors."""
    found: dict[str, str] = {}
    for detail in error.errors():
        if not detail["loc"]:
            yield f"{file} cannot be read, or is no JSON object"
            return
        keys = [str(part) for part in detail["loc"] if isinstance(part, int) or part.isidentifier()]
        key = ".".join(name for name in keys if name not in ("int", "float", "str"))
        found.setdefault(key, f"{detail['msg'].lower()}, got {redacted_repr(detail['input'], key)}")
    for key, reason in found.items():
        yield f"{file}: {key}: {reason}"
