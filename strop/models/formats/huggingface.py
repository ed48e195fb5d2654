"""Export of a model as a Hugging Face folder, which `AutoModelForCausalLM` or PEFT loads.

A run may hold the frozen weights in a shorter type to save memory. Rounding them can be larger than what an adapter
changes, so that the export of a merged adapter reads them again (`StoredBase`).
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.config.paths import gguf_file
from strop.config.peft_adapter import CONFIG_FILE
from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.formats.safetensors_files import write_weight_shards
from strop.models.library_settings import silence_transformers
from strop.models.loading import load_config, load_weights, without_deepspeed
from strop.models.lora import adapter_weights, merged_weights, serving_layout
from strop.models.meta_loading import MetaLoadingUnsupported, local_folder, tensor_files
from strop.models.packed_attention.forward import base_model
from strop.models.value_head import SCORE, is_classifier
from strop.workers.files import atomic_folder

ADAPTER_FOLDER = "adapter"
"""Name of the adapter's folder inside the folder of the merged model."""
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}
"""Data types of floating-point weights, by their names in safetensors files; others are those of quantized weights."""


def export_model(
    model: nn.Module,
    add_files: Callable[[Path], object],
    folder: Path,
    *,
    base: ModelConfig | None = None,
    dtype: str | None = None,
) -> None:
    """Write config, generation config and weights (safetensors) into `folder`.

    For a model with an adapter, `folder` gets the merged weights, and `folder/adapter` the adapter in PEFT's
    format. A model that is there is replaced once the new one is complete. Raises `ModelError` if the folder cannot
    be written, or holds other files.

    Args:
        add_files: writes further files, such as the tokenizer's.
        base: section of the model that an adapter is merged into. The merge has the data types of its files, and its
            weights as they are there, even if the run holds them in a shorter type.
        dtype: data type of all weights; if omitted, that of `base`'s files for an adapter, and otherwise the trained
            parameters' own.
    """
    _require_replaceable(folder)
    stored = (
        _read_stored_base(base, base_model(model)) if base and isinstance(model, PeftModel) else StoredBase()
    )
    sizes: Counter[torch.dtype] = Counter()

    def dtype_of(name: str, tensor: Tensor) -> torch.dtype:
        chosen = (
            getattr(torch, dtype) if dtype and tensor.is_floating_point() else stored.dtype_of(name, tensor)
        )
        sizes[chosen] += tensor.numel()
        return cast(torch.dtype, chosen)

    try:
        with atomic_folder(folder) as unfinished, silence_transformers(), without_deepspeed():
            whole = base_model(model)
            whole.save_pretrained(unfinished, state_dict={})  # the other files
            weights = merged_weights(model, originals=stored.weights, dtype=torch.float32)
            write_weight_shards(whole, weights, unfinished, dtype_of=dtype_of)
            _write_dtype(unfinished / "config.json", loaded=whole.dtype, written=sizes.most_common(1)[0][0])
            add_files(unfinished)
            if isinstance(model, PeftModel):
                write_adapter(model, unfinished / ADAPTER_FOLDER)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The model could not be exported to {folder}: {getattr(error, 'strerror', None) or error}. Check that the "
            "folder can be written and that the disk has space."
        ) from error


def _write_dtype(file: Path, *, loaded: torch.dtype, written: torch.dtype) -> None:
    """Name the data type of the files, which transformers loads them in, in place of that in memory."""
    old, new = (str(dtype).removeprefix("torch.") for dtype in (loaded, written))

    def renamed(values: dict[str, object]) -> dict[str, object]:
        return {
            key: new
            if (key, value) == ("dtype", old)
            else renamed(value)
            if isinstance(value, dict)
            else value
            for key, value in values.items()
        }

    if old != new:
        values = renamed(json.loads(file.read_text(encoding="utf-8")))
        file.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _require_replaceable(folder: Path) -> None:
    if folder.exists() and not (folder / "config.json").is_file() and any(folder.iterdir()):
        raise ModelError(
            f"{folder} holds other files than those of a model, which an export would delete. Name a folder that does "
            "not exist, is empty, or holds a model."
        )


def write_adapter(model: PeftModel, folder: Path) -> None:
    """Write the adapter in PEFT's format."""
    _write(model, dict(adapter_weights(model)), folder)


def write_serving_adapter(model: PeftModel, folder: Path) -> None:
    """Write the adapter in PEFT's format for an inference engine, with one rank and the scale alpha / rank.

    vLLM and SGLang read one rank and one alpha for all modules, and SGLang no `use_rslora`. Factors of a smaller rank
    are padded with zeros, and B takes the ratio of another scale. Raises ModelError for experts, whose factors stand
    side by side.
    """
    factors = dict(adapter_weights(model))
    layout = serving_layout(model)
    if layout is None:
        _write(model, factors, folder)
        return
    _write(model, dict(layout.rearranged(factors)), folder)
    file = folder / CONFIG_FILE
    uniform = {"r": layout.rank, "lora_alpha": layout.scale * layout.rank, "use_rslora": False}
    values = json.loads(file.read_text()) | uniform | {"rank_pattern": {}, "alpha_pattern": {}}
    file.write_text(json.dumps(values, indent=2, sort_keys=True))


def _write(model: PeftModel, factors: dict[str, Tensor], folder: Path) -> None:
    model.save_pretrained(str(folder), state_dict=factors)
    shutil.copymode(folder / CONFIG_FILE, folder / _ADAPTER_WEIGHTS)  # safetensors lets only the owner read
    (folder / "README.md").unlink()  # PEFT's empty model card
    heads = {name: tensor.cpu() for name, tensor in factors.items() if name.endswith(f".{SCORE}.weight")}
    if heads:  # of a classifier, which PEFT calls a module to save
        weights = folder / SAFETENSORS_WEIGHTS_NAME
        save_file({**load_file(weights), **heads}, weights, metadata={"format": "pt"})
        file = folder / CONFIG_FILE
        values = json.loads(file.read_text()) | {"task_type": "SEQ_CLS", "modules_to_save": [SCORE]}
        file.write_text(json.dumps(values, indent=2, sort_keys=True))


def join_write_adapter(model: PeftModel) -> None:
    """Take part in another rank's `write_adapter`, without writing."""
    for _ in adapter_weights(model):
        pass


def join_export(model: nn.Module) -> None:
    """Take part in another rank's `export_model`, without writing."""
    for _ in merged_weights(model):
        pass
    if isinstance(model, PeftModel):
        join_write_adapter(model)


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


def _read_stored_base(section: ModelConfig, model: PreTrainedModel) -> StoredBase:
    """Read the data types of a model's files, and its weights if those of `model` in memory are shorter.

    Quantized weights stay as they are in memory: an adapter was trained on them. Raises ModelError where the files
    cannot be read any more.
    """
    loaded = model.dtype
    if getattr(load_config(section), "quantization_config", None) is not None:
        return StoredBase(default=loaded)
    dtypes = {} if gguf_file(section.path) is not None else _stored_dtypes(section.path)
    widest = reduce(torch.promote_types, dtypes.values()) if dtypes else getattr(torch, section.dtype)
    weights = None
    if section.quantization is None and torch.promote_types(loaded, widest) != loaded:
        exact = section.model_copy(
            update={"dtype": str(widest).removeprefix("torch."), "compute_dtype": None, "lora": None}
        )
        weights = dict(merged_weights(load_weights(exact, classifier=is_classifier(model))))
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
