"""A folder of shards as verl saves them under FSDP: one pickle for each rank, put together again.

    model_world_size_8_rank_0.pt ...   a state dict of DTensors each
    huggingface/                       config.json and the tokenizer; in older folders they stand beside
    lora_adapter/, lora_train_meta.json   where an adapter was trained

torch reads the pickles with `weights_only`, which builds tensors and their placements and runs nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from strop.errors import ModelError
from strop.models.load import UNREADABLE, quiet

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_ADAPTED = re.compile(r"(.*)\.lora_A\.(?:\w+\.)?weight")


def is_sharded(folder: Path) -> bool:
    """Whether verl's FSDP wrote its shards there."""
    return any(_SHARD.fullmatch(path.name) for path in folder.glob("model_world_size_*.pt"))


def config_folder(folder: Path, named: Path | None = None) -> Path:
    """Where the model's config.json and its tokenizer are. Raises ModelError where they are not."""
    places = (named,) if named else (folder / "huggingface", folder)
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise ModelError(
        f"{' and '.join(map(str, places))}: there is no config.json, which says what model the shards are "
        "of. Name the folder of the model that was trained, as hf_model_path."
    )


def read_sharded(folder: Path, config_at: Path, *, lora_alpha: float | None = None) -> PreTrainedModel:
    """The whole model on the CPU, in the type it was saved in; an adapter is merged into it.

    Raises ModelError for shards that are missing, damaged, not of this model, or that torch will not read
    without running what is in them.
    """
    weights = _joined([_read(path) for path in _shards(folder)], folder)
    weights = _merged(weights, folder, lora_alpha)
    try:
        with quiet(), torch.device("meta"):
            config: PreTrainedConfig = AutoConfig.from_pretrained(config_at)
            model: PreTrainedModel = _kind(config, config_at).from_config(config)
        missing, unknown = model.load_state_dict(weights, strict=False, assign=True)
    except UNREADABLE as error:
        raise ModelError(f"The shards in {folder} do not fit {config_at / 'config.json'}: {error}") from error
    tied = set(model.all_tied_weights_keys)
    wrong = [*unknown, *(name for name in missing if name not in tied)]
    if wrong:
        raise ModelError(
            f"The shards in {folder} are not of the model that {config_at / 'config.json'} describes: "
            f"{len(wrong)} tensors are missing or unknown, such as {wrong[0]}."
        )
    model.tie_weights()
    if (config_at / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(config_at)
    return model


def _kind(config: PreTrainedConfig, config_at: Path) -> Any:
    name = (config.architectures or [""])[0]
    kinds = {"ForCausalLM": AutoModelForCausalLM, "ForTokenClassification": AutoModelForTokenClassification}
    for ending, kind in kinds.items():
        if name.endswith(ending):
            return kind
    raise ModelError(
        f"{config_at / 'config.json'} names the architecture {name or 'nothing'}; Strop merges causal "
        "language models, and verl's critics (ForTokenClassification)."
    )


def _shards(folder: Path) -> list[Path]:
    """One path for each rank, in order; the world that most shards are of."""
    found = {
        (int(match[1]), int(match[2])): path
        for path in folder.iterdir()
        if (match := _SHARD.fullmatch(path.name))
    }
    worlds = {world for world, _ in found}
    if len(worlds) > 1:
        raise ModelError(
            f"{folder} holds shards of several runs, of {' and '.join(map(str, sorted(worlds)))} ranks; "
            "leave those of one."
        )
    (world,) = worlds
    lacking = [rank for rank in range(world) if (world, rank) not in found]
    if lacking:
        raise ModelError(f"{folder} lacks model_world_size_{world}_rank_{lacking[0]}.pt, of {world} shards.")
    return [found[world, rank] for rank in range(world)]


def _read(path: Path) -> Mapping[str, Tensor]:
    import torch.distributed.tensor  # so that torch knows DTensors, and reads no pickle beyond them

    try:
        read: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        what = str(error).partition("\n")[0]
        raise ModelError(
            f"{path} holds more than tensors, and reading it could run any code, so Strop does not ({what}). "
            "Merge it once where you trust it, with verl's own model_merger."
        ) from error
    except (OSError, RuntimeError, EOFError) as error:
        raise ModelError(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(read, Mapping) or not all(isinstance(value, Tensor) for value in read.values()):
        raise ModelError(f"{path} is no state dict: a mapping from names to tensors.")
    return read


def _joined(shards: Sequence[Mapping[str, Tensor]], folder: Path) -> dict[str, Tensor]:
    """Every tensor whole, under its name."""
    return {name: _whole([shard[name] for shard in shards], name, folder) for name in shards[0]}


def _whole(parts: Sequence[Tensor], name: str, folder: Path) -> Tensor:
    """By the placement on the mesh's last dimension; over those before it, tensors are repeated."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    first = parts[0]
    if not isinstance(first, DTensor):
        return first if len(parts) == 1 else torch.cat(list(parts))
    *outer, placement = first.placements
    apart = first.device_mesh.mesh.shape[-1]
    locals_ = [part._local_tensor for part in parts[:apart] if isinstance(part, DTensor)]
    if isinstance(placement, Replicate):
        whole = locals_[0]
    elif isinstance(placement, Shard):
        whole = torch.cat(locals_, dim=placement.dim)
    else:
        raise ModelError(f"{folder}: {name} is placed as {placement}, which cannot be put together.")
    if any(not isinstance(each, Replicate) for each in outer) or whole.shape != first.shape:
        raise ModelError(
            f"{folder}: {name} is {tuple(first.shape)} over a mesh of {first.device_mesh.mesh_dim_names}, "
            "and its shards do not make that up; Strop merges what FSDP alone has split."
        )
    return whole


def _merged(weights: dict[str, Tensor], folder: Path, alpha: float | None) -> dict[str, Tensor]:
    """W + (alpha / rank) B A where there is an adapter, under the model's own names."""
    adapted = {match[1]: name for name in weights if (match := _ADAPTED.fullmatch(name))}
    if adapted and alpha is None:
        alpha = _alpha(folder)
    merged = {}
    for name, tensor in weights.items():
        if ".lora_" in name:
            continue
        module = name.removesuffix(".weight").removesuffix(".base_layer")
        if alpha is not None and name.endswith(".weight") and module in adapted:
            a = weights[adapted[module]].float()
            b = weights[adapted[module].replace(".lora_A.", ".lora_B.")].float()
            tensor = (tensor.float() + (alpha / a.shape[0]) * (b @ a)).to(tensor.dtype)
        merged[name.removeprefix("base_model.model.").replace(".base_layer.", ".")] = tensor
    return merged


def _alpha(folder: Path) -> float:
    """What the adapter is scaled by, from the files that verl saves beside."""
    for path in (folder / "lora_train_meta.json", folder / "lora_adapter" / "adapter_config.json"):
        if path.is_file():
            said = json.loads(path.read_text(encoding="utf-8")).get("lora_alpha")
            if said:
                return float(said)
    raise ModelError(
        f"{folder} holds an adapter, and neither lora_train_meta.json nor lora_adapter/adapter_config.json "
        "says its lora_alpha, by which it is scaled. Say it as lora_alpha=16, as in the run's configuration."
    )
