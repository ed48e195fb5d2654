"""Size of a model, from the config.json and the safetensors headers of its folder, or from a GGUF file's header."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from strop.config.paths import existing_path, gguf_file

_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers from which the memory of a model is computed."""

    parameters: int
    layers: int
    hidden: int
    """Width of the residual stream."""
    heads: int
    """Attention heads."""
    kv_heads: int
    """Attention heads of keys and values."""
    head_dim: int
    vocabulary: int = 0
    """Width of the logits; 0 where config.json does not say."""
    intermediate: int = 0
    """Width of the MLP that a token passes, with the experts chosen for it; 0 where config.json does not say."""

    @property
    def mlp_width(self) -> int:
        """`intermediate`, or four times the hidden size."""
        return self.intermediate or 4 * self.hidden

    @property
    def kv_values_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def read_model_size(path: str) -> ModelSize | None:
    """The size of a model folder or GGUF file; None for a name on the Hub, and for files without these entries."""
    folder, quantized = existing_path(path), gguf_file(path)
    if folder is None:
        return None
    try:
        if quantized is not None:
            return _gguf_size(quantized.absolute(), quantized.stat().st_mtime_ns)
        versions = [
            (file.absolute(), file.stat().st_mtime_ns)
            for file in (folder / "config.json", *sorted(folder.glob("*.safetensors")))
        ]
        return _model_size(*versions)
    except Exception:  # noqa: BLE001  (files of any content; the start of the run reports what is wrong with them)
        return None


@cache
def _model_size(config_version: tuple[Path, int], *weight_versions: tuple[Path, int]) -> ModelSize | None:
    """The size from files, each with its time of modification, so that a changed folder is read again."""
    if not weight_versions:
        return None
    config: dict[str, Any] = json.loads(config_version[0].read_text())
    text = config.get("text_config", config)
    heads, hidden = int(text["num_attention_heads"]), int(text["hidden_size"])
    return ModelSize(
        parameters=sum(_parameters(file) for file, _ in weight_versions),
        layers=int(text["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or hidden // heads),
        vocabulary=int(text.get("vocab_size") or 0),
        intermediate=_intermediate(text),
    )


@cache
def _gguf_size(file: Path, version: int) -> ModelSize | None:
    """The size from a GGUF file of a version, its time of modification; None without the package that reads it."""
    if find_spec("gguf") is None:
        return None
    from gguf import GGUFReader

    reader = GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()

    def value(name: str, default: int = 0) -> int:
        field = reader.fields.get(f"{architecture}.{name}")
        return default if field is None else int(field.contents())

    heads, hidden = value("attention.head_count"), value("embedding_length")
    if not heads:
        return None
    return ModelSize(
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        layers=value("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=value("attention.head_count_kv", heads),
        head_dim=value("attention.key_length", hidden // heads),
        vocabulary=value("vocab_size") or len(reader.fields["tokenizer.ggml.tokens"].data),
        intermediate=value("feed_forward_length"),
    )


def _intermediate(text: dict[str, Any]) -> int:
    experts = int(text.get("num_experts_per_tok") or 0)
    of_expert = int(text.get("moe_intermediate_size") or 0)
    return experts * of_expert or max(experts, 1) * int(text.get("intermediate_size") or 0)


def _parameters(file: Path) -> int:
    """Number of values in a safetensors file."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"{file} is not a safetensors file")
        header: dict[str, Any] = json.loads(opened.read(length))
    return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
