"""The folders that a component's line names as its outputs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from strop.config.dialects.component import Job
from strop.errors import ConfigError
from strop.models.mlflow_folder import require_mlflow, write_mlflow

_CHECKPOINTS = "checkpoints"


def prepare(job: Job) -> None:
    """Make the folders, before hours are spent on what goes into them. Raises ConfigError for one that
    cannot be written or is named twice, MissingExtraError for an MLflow model without mlflow."""
    if job.folders("mlflow"):
        require_mlflow()
    names: dict[Path, str] = {}
    for output, folder in job.outputs:
        other = names.setdefault(folder.resolve(), output.name)
        if other != output.name:
            raise ConfigError(
                f"--{other} and --{output.name} are both {folder}; each wants a folder of its own."
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(f"The output {folder} cannot be written: {error.strerror}.") from None


def fill(job: Job) -> Iterator[str]:
    """Put the trained model into every output that asks for it; one sentence for each.

    Raises ConfigError or ModelError where one cannot be written.
    """
    run = job.loaded.run
    model = run.folder_path / "model"
    for folder in job.folders("model"):
        _copy(model, folder, shutil.copy2)
        yield f"The model is in {folder}."
    for folder in job.folders("mlflow"):
        write_mlflow(model, folder, max_new_tokens=run.data.max_response_tokens)
        shutil.rmtree(folder / _CHECKPOINTS, ignore_errors=True)
        _copy(run.folder_path / _CHECKPOINTS, folder / _CHECKPOINTS, link_or_copy)
        yield f"The model is in {folder} as an MLflow model, with the checkpoints beside it."


def link_or_copy(source: str, target: str) -> str:
    """A second name for a file that nobody changes, where the file system has such; else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


def _copy(source: Path, target: Path, copy: Callable[[str, str], object]) -> None:
    try:
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy)
    except OSError as error:
        raise ConfigError(f"{source} could not be copied to {target}: {error}.") from None
