"""An MLflow model of the transformers flavor, that `mlflow.transformers` and `mlflow.pyfunc` load."""

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
from strop.models.load import quiet


def require_mlflow() -> None:
    """Raises MissingExtraError where mlflow is not installed."""
    if find_spec("mlflow") is None:
        raise MissingExtraError("An MLflow model needs MLflow: pip install 'strop[mlflow]'")


def write_mlflow(model: Path, folder: Path, *, max_new_tokens: int) -> None:
    """Write the Hugging Face folder `model` into `folder`, in place of an MLflow model that is there.

    `mlflow.pyfunc.load_model(folder).predict` takes `{"messages": [...]}` and answers like a chat server
    where the tokenizer has a chat template, else it takes text; answers end after `max_new_tokens`.
    Raises MissingExtraError without mlflow, ModelError where `folder` cannot be written.
    """
    require_mlflow()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it is read when mlflow is imported
    import mlflow.transformers

    beside = folder / ".mlflow.tmp"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        with quiet(), _silent_mlflow():
            mlflow.transformers.save_model(
                str(model.resolve()),
                str(beside),
                task="llm/v1/chat" if _chats(model) else "text-generation",
                model_config={"max_new_tokens": max_new_tokens},
                pip_requirements=[f"{name}=={_public(version(name))}" for name in ("torch", "transformers")],
            )
        # It says to look for the licence on the hub, under a name that is this folder's.
        (beside / "LICENSE.txt").unlink(missing_ok=True)
        for written in beside.iterdir():
            _replace(folder / written.name, written)
    except OSError as error:
        raise ModelError(
            f"The MLflow model could not be written to {folder}: {error.strerror or error}."
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _chats(model: Path) -> bool:
    if (model / "chat_template.jinja").is_file():
        return True
    config = model / "tokenizer_config.json"
    return config.is_file() and "chat_template" in json.loads(config.read_text(encoding="utf-8"))


def _public(installed: str) -> str:
    """A version without what marks a build for one kind of machine, as `+cpu` does."""
    return installed.partition("+")[0]


def _replace(old: Path, new: Path) -> None:
    if old.is_dir():
        shutil.rmtree(old)
    new.replace(old)


@contextmanager
def _silent_mlflow() -> Iterator[None]:
    """Without its warnings that a folder is not on the hub."""
    logger = logging.getLogger("mlflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
