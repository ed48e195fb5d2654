"""verl's FSDP checkpoints, with one pickled file of shards for each rank, and their export by `strop verl merge`.

    model_world_size_8_rank_0.pt ...   one state dict of DTensors per rank
    huggingface/                       config.json and the tokenizer; older folders have them at the top level
    lora_adapter/, lora_train_meta.json   if an adapter was trained

torch reads the pickles with `weights_only`, which builds tensors and their placements and runs no other code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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

from strop.config.peft_adapter import CONFIG_FILE, AdapterOptions, read_adapter_options
from strop.config.schema.model import ModelConfig
from strop.errors import CheckpointError, ModelError
from strop.models.formats.huggingface import export_model
from strop.models.library_settings import silence_transformers
from strop.models.loading import LOAD_ERRORS, load_tokenizer
from strop.run.entry.export import export_checkpoint
from strop.runs.folder import RunFolder
from strop.training.checkpoints import checkpoint as checkpoints
from strop.workers.json_text import read_object

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_ADAPTER = "lora_adapter"
_PEFT = "base_model.model."
"""Start of the names in PEFT's models."""
_LORA_A = re.compile(r"(.*)\.lora_A\.(?:\w+\.)?weight")


def is_verl_fsdp_checkpoint(folder: Path) -> bool:
    """Whether the folder contains shards of verl's FSDP."""
    return any(_SHARD.fullmatch(path.name) for path in folder.glob("model_world_size_*.pt"))


def find_config_folder(folder: Path, given: Path | None = None) -> Path:
    """Find the folder with config.json and the tokenizer. Raises `ModelError` if there is none."""
    candidates = (given,) if given else (folder / "huggingface", folder)
    for candidate in candidates:
        if (candidate / "config.json").is_file():
            return candidate
    raise ModelError(
        f"{' and '.join(map(str, candidates))}: there is no config.json of the model. Set hf_model_path to "
        "the folder of the model that was trained."
    )


def load_verl_fsdp_checkpoint(
    folder: Path, config_folder: Path, *, lora_alpha: float | None = None
) -> PreTrainedModel:
    """Load the full model on the CPU, in the saved dtype, with its adapter merged.

    Raises `ModelError` for shards that are missing, damaged, of another model, or that torch cannot read
    without running code in them.
    """
    weights = _join_shards([_read(path) for path in _shards(folder)], folder)
    weights = _merge_adapter(weights, folder, lora_alpha)
    try:
        with silence_transformers(), torch.device("meta"):
            config: PreTrainedConfig = AutoConfig.from_pretrained(config_folder)
            model: PreTrainedModel = _model_class(config, config_folder).from_config(config)
        missing, unknown = model.load_state_dict(weights, strict=False, assign=True)
    except LOAD_ERRORS as error:
        raise ModelError(
            f"The shards in {folder} do not fit {config_folder / 'config.json'}: {error}"
        ) from error
    tied = set(model.all_tied_weights_keys)
    wrong = [*unknown, *(name for name in missing if name not in tied)]
    if wrong:
        raise ModelError(
            f"The shards in {folder} are not of the model in {config_folder / 'config.json'}: "
            f"{len(wrong)} tensors are missing or unknown, such as {wrong[0]}."
        )
    model.tie_weights()
    if (config_folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(config_folder)
    return model


def _model_class(config: PreTrainedConfig, config_folder: Path) -> Any:
    name = (config.architectures or [""])[0]
    kinds = {"ForCausalLM": AutoModelForCausalLM, "ForTokenClassification": AutoModelForTokenClassification}
    for ending, kind in kinds.items():
        if name.endswith(ending):
            return kind
    raise ModelError(
        f"{config_folder / 'config.json'} names the architecture {name or 'nothing'}; Strop merges causal "
        "language models, and verl's critics (ForTokenClassification)."
    )


def _shards(folder: Path) -> list[Path]:
    """Files of all ranks, in order."""
    found = {
        (int(match[1]), int(match[2])): path
        for path in folder.iterdir()
        if (match := _SHARD.fullmatch(path.name))
    }
    worlds = {world for world, _ in found}
    if len(worlds) > 1:
        raise ModelError(
            f"{folder} has shards of several runs, of {' and '.join(map(str, sorted(worlds)))} ranks; remove "
            "all but one run's."
        )
    (world,) = worlds
    missing = [rank for rank in range(world) if (world, rank) not in found]
    if missing:
        raise ModelError(f"{folder} lacks model_world_size_{world}_rank_{missing[0]}.pt, of {world} shards.")
    return [found[world, rank] for rank in range(world)]


def _read(path: Path) -> Mapping[str, Tensor]:
    import torch.distributed.tensor  # registers DTensor as safe to unpickle

    try:
        read: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"{path} contains more than tensors ({reason}). Reading it could run any code, so Strop refuses. If "
            "you trust it, merge it with verl's own model_merger."
        ) from error
    except (OSError, RuntimeError, EOFError) as error:
        raise ModelError(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error
    if not isinstance(read, Mapping) or not all(isinstance(value, Tensor) for value in read.values()):
        raise ModelError(f"{path} is not a state dict, which maps names to tensors.")
    return read


def _join_shards(shards: Sequence[Mapping[str, Tensor]], folder: Path) -> dict[str, Tensor]:
    """Full tensors by name."""
    return {name: _join_tensor([shard[name] for shard in shards], name, folder) for name in shards[0]}


def _join_tensor(parts: Sequence[Tensor], name: str, folder: Path) -> Tensor:
    """Join shards along the mesh's last dimension; over the other dimensions tensors must be replicated."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    first = parts[0]
    if not isinstance(first, DTensor):
        return first if len(parts) == 1 else torch.cat(list(parts))
    *outer, placement = first.placements
    num_shards = first.device_mesh.mesh.shape[-1]
    locals_ = [part._local_tensor for part in parts[:num_shards] if isinstance(part, DTensor)]
    if isinstance(placement, Replicate):
        full = locals_[0]
    elif isinstance(placement, Shard):
        full = torch.cat(locals_, dim=placement.dim)
    else:
        raise ModelError(f"{folder}: {name} is placed as {placement}, which Strop cannot join.")
    if any(not isinstance(each, Replicate) for each in outer) or full.shape != first.shape:
        raise ModelError(
            f"{folder}: {name} has shape {tuple(first.shape)} over a mesh of "
            f"{first.device_mesh.mesh_dim_names}, which its shards do not add up to; Strop joins only shards of "
            "FSDP."
        )
    return full


def _merge_adapter(weights: dict[str, Tensor], folder: Path, alpha: float | None) -> dict[str, Tensor]:
    """W + scale B A for adapted weights; all under the model's own names."""
    adapted = {match[1]: name for name in weights if (match := _LORA_A.fullmatch(name))}
    options = _read_options(folder, alpha) if adapted else None
    merged = {}
    for name, tensor in weights.items():
        if ".lora_" in name:
            continue
        module = name.removesuffix(".weight").removesuffix(".base_layer")
        if options is not None and name.endswith(".weight") and module in adapted:
            a = weights[adapted[module]].float()
            b = weights[adapted[module].replace(".lora_A.", ".lora_B.")].float()
            scale = options.scale(module.removeprefix(_PEFT), a.shape[0])
            tensor = (tensor.float() + scale * (b @ a)).to(tensor.dtype)
        merged[name.removeprefix(_PEFT).replace(".base_layer.", ".")] = tensor
    return merged


def _adapter_alpha(file: Path) -> float | None:
    try:
        alpha = read_object(file).get("lora_alpha")
        return None if alpha is None else float(alpha)
    except (OSError, ValueError, TypeError) as error:
        raise ModelError(f"{file} cannot be read: {error}. Restore the file that verl wrote.") from error


def _read_options(folder: Path, alpha: float | None) -> AdapterOptions:
    """The adapter's scale, from the files that verl saves with it; `alpha` replaces theirs."""
    options = None
    if (folder / _ADAPTER / CONFIG_FILE).is_file():
        options = read_adapter_options(folder / _ADAPTER, "The checkpoint")
    meta = folder / "lora_train_meta.json"
    if alpha is None and options is None and meta.is_file():
        alpha = _adapter_alpha(meta)
    if alpha:
        return (
            AdapterOptions(rank=1, alpha=float(alpha)) if options is None else replace(options, alpha=alpha)
        )
    if options is not None:
        return options
    raise ModelError(
        f"{folder} has an adapter, but neither lora_train_meta.json nor lora_adapter/adapter_config.json gives "
        "its lora_alpha. Pass the value of the run's configuration, such as lora_alpha=16."
    )


@dataclass(frozen=True, slots=True)
class VerlShardOptions:
    """Values that a folder with verl's shards may lack."""

    model: Path | None = None
    """Folder of the trained model, where its config.json is not next to the shards."""
    lora_alpha: float | None = None


def merge(folder: Path, to: Path, shards: VerlShardOptions) -> Path:
    """Export a run folder (its newest checkpoint), one checkpoint in it, or verl's shards. Returns `to`.

    Raises CheckpointError for any other folder.
    """
    folder = folder.expanduser()
    if is_verl_fsdp_checkpoint(folder):
        config_at = find_config_folder(folder, shards.model)
        model = load_verl_fsdp_checkpoint(folder, config_at, lora_alpha=shards.lora_alpha)
        export_model(model, load_tokenizer(ModelConfig(path=str(config_at))).save_pretrained, to)
        return to
    run = folder.parent.parent
    if RunFolder(run).run_file.is_file() and RunFolder(run).checkpoints == folder.parent:
        return export_checkpoint(run, to, checkpoints.step_of(folder))
    if RunFolder(folder).run_file.is_file():  # a checkpoint has a copy of it
        return export_checkpoint(folder, to, None)
    reason = "the folder does not exist" if not folder.is_dir() else "it holds neither of these"
    raise CheckpointError(
        f"{folder}: {reason}. Name a run folder of Strop's, a checkpoint in it (.../checkpoints/step-000020), "
        "or a folder with verl's shards (.../global_step_20/actor, with model_world_size_8_rank_0.pt)."
    )
