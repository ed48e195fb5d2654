"""A checkpoint, Strop's or verl's, as a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strop.config.schema.model import Model
from strop.errors import CheckpointError
from strop.models.export import export_model
from strop.models.load import load_tokenizer
from strop.models.verl_shards import config_folder, is_sharded, read_sharded
from strop.run.folder import RunFolder
from strop.run.offline import export
from strop.training.checkpoint import step_of


@dataclass(frozen=True, slots=True)
class Shards:
    """What verl's own folder may not say of itself."""

    model: Path | None = None
    """The folder of the model that was trained, where its config.json is not beside the shards."""
    lora_alpha: float | None = None


def merge(folder: Path, to: Path, shards: Shards) -> Path:
    """Write the model of a run folder (its last checkpoint), of one checkpoint in it, or of verl's shards.

    Raises CheckpointError for a folder that is none of these.
    """
    folder = folder.expanduser()
    if is_sharded(folder):
        config_at = config_folder(folder, shards.model)
        model = read_sharded(folder, config_at, lora_alpha=shards.lora_alpha)
        export_model(model, load_tokenizer(Model(path=str(config_at))), to)
        return to
    if RunFolder(folder).run_file.is_file():
        return export(folder, to, None)
    run = folder.parent.parent
    if RunFolder(run).run_file.is_file():
        return export(run, to, step_of(folder))
    what = "there is no such folder" if not folder.is_dir() else "there is none of these"
    raise CheckpointError(
        f"{folder}: {what}. Name a run folder of Strop's, a checkpoint in it (.../checkpoints/step-000020), "
        "or a folder with verl's shards (.../global_step_20/actor, with model_world_size_8_rank_0.pt)."
    )
