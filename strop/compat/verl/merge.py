"""`strop verl merge`: export of a checkpoint, written by Strop or by verl, as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strop.compat.verl.fsdp_checkpoint import (
    find_config_folder,
    is_verl_fsdp_checkpoint,
    load_verl_fsdp_checkpoint,
)
from strop.config.schema.model import ModelConfig
from strop.errors import CheckpointError
from strop.models.formats.huggingface import export_model
from strop.models.loading import load_tokenizer
from strop.run.entry.export import export_checkpoint
from strop.runs.folder import RunFolder
from strop.training.checkpoints import checkpoint as checkpoints


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
