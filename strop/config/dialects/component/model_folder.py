"""Where the weights are in what AzureML calls a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from strop.config.dialects.row import Pair
from strop.config.dialects.theirs import Theirs
from strop.config.local import existing
from strop.errors import ConfigError

_MODELS = ("model", "data/model")
"""Where MLflow's transformers flavor, and AzureML's registry, keep the weights."""
_TOKENIZERS = ("components/tokenizer", "data/tokenizer")


def model_at(key: str) -> Pair:
    """Reads a model input: a Hugging Face folder, an MLflow model, or the import component's output around
    either."""

    def read(theirs: Theirs) -> Mapping[str, Any]:
        path = theirs[key]
        if path is None:
            return {}
        try:
            model, tokenizer = find_model(Path(str(path)))
        except ConfigError as error:
            raise theirs.fault(key, str(error)) from None
        settings = {"model.path": str(model)}
        return settings | ({"model.tokenizer": str(tokenizer)} if tokenizer else {})

    return Pair(read, lambda run: {key: run.model.path})


def find_model(folder: Path) -> tuple[Path, Path | None]:
    """The folder of the weights, and the tokenizer's where it has its own. What is not there is left to be
    found missing; raises ConfigError where a folder is there and holds no model, or several."""
    if existing(folder) is None or not folder.is_dir() or (folder / "config.json").is_file():
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
            f"{folder} holds no model: a config.json (Hugging Face) or an MLmodel file (MLflow) is expected "
            f"in it, or in one folder inside it, but there it is in {found}."
        )
    return find_model(inside[0])


def _mlflow(folder: Path) -> tuple[Path, Path | None]:
    text = (folder / "MLmodel").read_text(encoding="utf-8")
    try:
        description = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{folder / 'MLmodel'}: this is not YAML: {' '.join(str(error).split())}."
        ) from None
    flavor = description.get("flavors", {}).get("transformers", {})
    models = [name for name in (flavor.get("model_binary"), *_MODELS) if name]
    model = next((folder / name for name in models if (folder / name / "config.json").is_file()), None)
    if model is None:
        raise ConfigError(
            f"{folder} is an MLflow model without weights for transformers: there is no config.json in "
            f"{' or '.join(dict.fromkeys(models))}."
        )
    tokenizer = next((folder / name for name in _TOKENIZERS if (folder / name).is_dir()), None)
    return model, tokenizer
