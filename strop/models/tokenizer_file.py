"""Tokenizer of a model folder as its tokenizer.json defines it, without the classes that import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.config.model_files import read_model_file
from strop.config.paths import existing_path
from strop.config.schema.model import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONFIG_FILES = ("config.json", "tokenizer_config.json")


def read_tokenizer_file(section: ModelConfig) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a folder on this machine, in a second and without torch; None where `load_tokenizer` decides.

    That is the case for a folder without tokenizer.json or with code of its own, and for files with faults, which
    `load_tokenizer` reports. The class for the model in transformers, which `load_tokenizer` chooses, splits some texts
    in another way for some models.
    """
    path = section.tokenizer or section.path
    folder = existing_path(path)
    if section.imports or folder is None or not (folder / "tokenizer.json").is_file():
        return None
    if not all(read_model_file(path, name) for name in _CONFIG_FILES):
        return None
    if "auto_map" in read_model_file(path, "tokenizer_config.json"):
        return None
    from transformers import PreTrainedTokenizerFast  # imports no torch, as `AutoTokenizer` does

    from strop.models.library_settings import silence_transformers

    try:
        with silence_transformers():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception:  # noqa: BLE001  (`load_tokenizer` names the fault)
        return None
    return tokenizer if len(tokenizer) > len(tokenizer.all_special_ids) else None
