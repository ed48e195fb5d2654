"""A model as a Hugging Face folder, that `AutoModelForCausalLM` or PEFT loads."""

from __future__ import annotations

import shutil
from pathlib import Path

from peft import PeftModel
from torch import nn
from transformers import PreTrainedTokenizerBase

from strop.errors import ModelError
from strop.models.attention import base_model
from strop.models.load import quiet
from strop.models.lora import adapter_weights, merged_weights

ADAPTER_FOLDER = "adapter"
"""Where the adapter stands, inside the folder of the merged model."""


def export_model(model: nn.Module, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write config, generation config, tokenizer and weights (safetensors) into `folder`.

    Of a model with an adapter, `folder` gets the merged weights, and `folder/adapter` the adapter
    alone in PEFT's format. Nothing is left half-written under the folder's name. Raises ModelError
    where it cannot be written.
    """
    beside = folder.with_name(f".{folder.name}.tmp")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        with quiet():
            base_model(model).save_pretrained(beside, state_dict=dict(merged_weights(model)))
            tokenizer.save_pretrained(beside)
            if isinstance(model, PeftModel):
                adapter = beside / ADAPTER_FOLDER
                model.save_pretrained(str(adapter), state_dict=dict(adapter_weights(model)))
                (adapter / "README.md").unlink()  # PEFT's form for a model card, with nothing filled in
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)
    except OSError as error:
        raise ModelError(
            f"The model could not be exported to {folder}: {error.strerror or error}."
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def attend_export(model: nn.Module) -> None:
    """Take part in another rank's `export_model`, and keep nothing of it."""
    for _ in merged_weights(model):
        pass
    if isinstance(model, PeftModel):
        for _ in adapter_weights(model):
            pass
