"""Export of an MLflow model of the transformers flavor, for `mlflow.transformers` and `mlflow.pyfunc`."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from strop.errors import MissingExtraError, ModelError
from strop.workers.files import fsync_tree, remove_leftovers, replace_folder, restore_folder, temporary_path


def require_mlflow() -> None:
    """Raise `MissingExtraError` if mlflow is not installed."""
    if find_spec("mlflow") is None:
        raise MissingExtraError("An MLflow model needs MLflow: pip install 'strop[mlflow]'")


def write_mlflow(model: Path, folder: Path, *, max_new_tokens: int) -> None:
    """Write the Hugging Face folder `model` into `folder`, replacing an MLflow model there.

    `mlflow.pyfunc.load_model(folder).predict` takes `{"messages": [...]}` and responds like a chat server if
    the tokenizer has a chat template; else it takes text. Responses have at most `max_new_tokens` tokens.
    Raises `MissingExtraError` without mlflow, `ModelError` if `folder` cannot be written.
    """
    require_mlflow()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # mlflow reads it at import
    import mlflow.transformers

    # Imports torch, which a command that starts a run's processes does without.
    from strop.models.library_settings import silence_transformers

    partial = temporary_path(folder / "mlflow")
    try:
        remove_leftovers(folder)
        with silence_transformers(), _silent_mlflow():
            mlflow.transformers.save_model(
                str(model.resolve()),
                str(partial),
                task="llm/v1/chat" if _has_chat_template(model) else "text-generation",
                model_config={"max_new_tokens": max_new_tokens},
                pip_requirements=[
                    f"{name}=={_public_version(version(name))}" for name in ("torch", "transformers")
                ],
            )
        # It refers to the license of a hub model with this folder's name, which does not exist.
        (partial / "LICENSE.txt").unlink(missing_ok=True)
        fsync_tree(partial)
        for written in partial.iterdir():
            _replace(folder / written.name, written)
    except OSError as error:
        raise ModelError(
            f"The MLflow model could not be written to {folder}: {error.strerror or error}."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _has_chat_template(model: Path) -> bool:
    if (model / "chat_template.jinja").is_file():
        return True
    config = model / "tokenizer_config.json"
    return config.is_file() and "chat_template" in json.loads(config.read_text(encoding="utf-8"))


def _public_version(installed: str) -> str:
    """A version without its local build label, such as `+cpu`."""
    return installed.partition("+")[0]


def _replace(old: Path, new: Path) -> None:
    if new.is_dir():
        restore_folder(old)
        replace_folder(new, old)
    else:
        new.replace(old)


@contextmanager
def _silent_mlflow() -> Iterator[None]:
    """Silence mlflow's warnings that a folder is not on the hub."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
