"""Export of a model as a Hugging Face folder, which `AutoModelForCausalLM` or PEFT loads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from peft import PeftModel
from safetensors import SafetensorError
from torch import nn

from strop.errors import ModelError
from strop.models.loading import silence_transformers
from strop.models.lora import adapter_weights, merged_weights
from strop.models.packed_attention.forward import base_model

ADAPTER_FOLDER = "adapter"
"""Name of the adapter's folder inside the folder of the merged model."""


def export_model(model: nn.Module, add_files: Callable[[Path], object], folder: Path) -> None:
    """Write config, generation config and weights (safetensors) into `folder`.

    `add_files` writes further files, such as the tokenizer's.

    For a model with an adapter, `folder` gets the merged weights, and `folder/adapter` the adapter in PEFT's
    format. The folder appears only when it is complete. Raises `ModelError` if it cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        with silence_transformers():
            base_model(model).save_pretrained(partial, state_dict=dict(merged_weights(model)))
            add_files(partial)
            if isinstance(model, PeftModel):
                write_adapter(model, partial / ADAPTER_FOLDER)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The model could not be exported to {folder}: {getattr(error, 'strerror', None) or error}. Check that the "
            "folder can be written and that the disk has space."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


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
