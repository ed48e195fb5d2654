"""Export of a model as a Hugging Face folder, which `AutoModelForCausalLM` or PEFT loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peft import PeftModel
from safetensors import SafetensorError
from torch import nn

from strop.errors import ModelError
from strop.models.formats.weight_shards import write_weight_shards
from strop.models.loading import silence_transformers, without_deepspeed
from strop.models.lora import adapter_weights, merged_weights
from strop.models.packed_attention.forward import base_model
from strop.workers.atomic_folder import atomic_folder

ADAPTER_FOLDER = "adapter"
"""Name of the adapter's folder inside the folder of the merged model."""


def export_model(model: nn.Module, add_files: Callable[[Path], object], folder: Path) -> None:
    """Write config, generation config and weights (safetensors) into `folder`.

    `add_files` writes further files, such as the tokenizer's.

    For a model with an adapter, `folder` gets the merged weights, and `folder/adapter` the adapter in PEFT's
    format. A model that is there is replaced once the new one is complete. Raises `ModelError` if the folder cannot
    be written, or holds other files.
    """
    _require_replaceable(folder)
    try:
        with atomic_folder(folder) as partial, silence_transformers(), without_deepspeed():
            base = base_model(model)
            base.save_pretrained(partial, state_dict={})  # the other files
            write_weight_shards(base, merged_weights(model), partial)
            add_files(partial)
            if isinstance(model, PeftModel):
                write_adapter(model, partial / ADAPTER_FOLDER)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The model could not be exported to {folder}: {getattr(error, 'strerror', None) or error}. Check that the "
            "folder can be written and that the disk has space."
        ) from error


def _require_replaceable(folder: Path) -> None:
    if folder.exists() and not (folder / "config.json").is_file() and any(folder.iterdir()):
        raise ModelError(
            f"{folder} holds other files than those of a model, which an export would delete. Name a folder that does "
            "not exist, is empty, or holds a model."
        )


def write_adapter(model: PeftModel, folder: Path) -> None:
    """Write the adapter in PEFT's format."""
    model.save_pretrained(str(folder), state_dict=dict(adapter_weights(model)))
    (folder / "README.md").unlink()  # PEFT's empty model card


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
