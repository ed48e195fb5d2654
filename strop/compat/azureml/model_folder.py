"""Model inputs of AzureML components: finds the weights and the tokenizer inside an AzureML model folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strop.compat.ledger.key_mapping import ForeignValues, KeyConverter
from strop.config.load.yaml_file import read_yaml
from strop.config.paths import existing_path
from strop.errors import ConfigError

_MODELS = ("model", "data/model")
"""Folders in which MLflow's transformers flavor and AzureML's registry keep the weights."""
_TOKENIZERS = ("components/tokenizer", "data/tokenizer")


def model_folder_converter(key: str) -> KeyConverter:
    """Converter of a model input: a Hugging Face folder, an MLflow model, or an output of the import
    component with either inside."""

    def read(foreign: ForeignValues) -> Mapping[str, Any]:
        path = foreign[key]
        if path is None:
            return {}
        try:
            model, tokenizer = find_model(Path(str(path)))
        except ConfigError as error:
            raise foreign.error_for(key, str(error)) from None
        settings = {"model.path": str(model)}
        return settings | ({"model.tokenizer": str(tokenizer)} if tokenizer else {})

    return KeyConverter(read, lambda run: {key: run.model.path})


def find_model(folder: Path) -> tuple[Path, Path | None]:
    """The folder of the weights, and the tokenizer's folder if it is a separate one. A missing folder is
    returned unchanged, and the later check of the run reports it. Raises ConfigError for a folder with no
    model or several."""
    if existing_path(folder) is None or not folder.is_dir() or (folder / "config.json").is_file():
        return folder, None
    if (folder / "MLmodel").is_file():
        return _mlflow(folder)
    inside = [
        child
        for child in sorted(folder.iterdir())
        if child.is_dir() and any((child / name).is_file() for name in ("config.json", "MLmodel"))
    ]
    if len(inside) != 1:
        found = ", ".join(child.name for child in inside) or "none"
        raise ConfigError(
            f"{folder} is not a model: it needs a config.json (Hugging Face) or an MLmodel file (MLflow), or "
            f"exactly one subfolder with either; subfolders with either: {found}."
        )
    return find_model(inside[0])


def _mlflow(folder: Path) -> tuple[Path, Path | None]:
    flavor = read_yaml(folder / "MLmodel").get(("flavors", "transformers"))
    binary = flavor.get("model_binary") if isinstance(flavor, dict) else None
    models = [name for name in (binary, *_MODELS) if isinstance(name, str)]
    model = next((folder / name for name in models if (folder / name / "config.json").is_file()), None)
    if model is None:
        raise ConfigError(
            f"{folder} is an MLflow model without transformers weights: there is no config.json in "
            f"{' or '.join(dict.fromkeys(models))}."
        )
    tokenizer = next((folder / name for name in _TOKENIZERS if (folder / name).is_dir()), None)
    return model, tokenizer
