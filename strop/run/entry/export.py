"""Export of a run's checkpoint as a Hugging Face folder, and its upload to the Hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from strop.config.load.loader import is_run_folder
from strop.config.local_workers import with_workers
from strop.config.paths import gguf_file
from strop.config.schema.model import ModelConfig
from strop.errors import CheckpointError, ModelError
from strop.models.formats.huggingface import export_model
from strop.models.loading import load_model, load_tokenizer
from strop.run.entry.evaluate import last_checkpoint
from strop.run.entry.trained_policy import load_policy_run, policy_only
from strop.run.tokenizer import load_run_tokenizer
from strop.runs.folder import RunFolder
from strop.runs.model_card import model_card
from strop.runs.reader import read_run
from strop.training.backend import open_training_engines
from strop.training.checkpoints import checkpoint as checkpoints
from strop.workers.hub_requests import limit_hub_requests


def export_checkpoint(folder: Path, to: Path, step: int | None, dtype: str | None = None) -> Path:
    """Export a checkpoint of the run in `folder`; with LoRA, the adapter as well; README.md is its model card.
    Returns `to`.

    A GGUF file in place of the run is converted.

    `step` selects the checkpoint; None takes the newest intact one. `dtype` is the data type of the weights, in place
    of the run's `export.dtype`. Raises `CheckpointError` where there is no such checkpoint.
    """
    if gguf_file(str(folder)) is not None:
        return _convert_gguf(ModelConfig(path=str(folder)), to, dtype)
    source = RunFolder(folder)
    if not is_run_folder(folder):
        raise CheckpointError(f"{folder} is no run folder: it has no {source.run_file.name}.")
    if step is None:
        found = last_checkpoint(source)
    else:
        found = checkpoints.folder_for_step(source.checkpoints, step)
        if not found.is_dir():
            raise CheckpointError(f"There is no checkpoint of step {step} in {source.checkpoints}.")
        checkpoints.verify(found)
    run = load_policy_run(source, [] if dtype is None else [f"export.dtype={dtype}"]).run
    with open_training_engines(with_workers(policy_only(run), 1)) as engines:  # nothing is to be divided
        engine = engines.policy()
        engine.load(found)
        tokenizer, card = load_run_tokenizer(run), model_card(read_run(folder))

        def add_files(target: Path) -> None:
            tokenizer.save_pretrained(target)
            (target / "README.md").write_text(card, encoding="utf-8")

        engine.export(to, add_files)
    return to


def _convert_gguf(section: ModelConfig, to: Path, dtype: str | None) -> Path:
    """Write a GGUF file's model as a Hugging Face folder."""
    model = load_model(section, device="cpu", trainable=False)
    export_model(model, load_tokenizer(section).save_pretrained, to, dtype=dtype)
    return to


_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""Base of all errors of the HTTP library that huggingface_hub uses, which differs between its versions."""
_HUB_ERRORS = (_HTTP_ERROR, OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError)
"""Exceptions of huggingface_hub; the last ones are of answers that are none of a hub, such as a proxy's page."""


def push_to_hub(folder: Path, name: str, *, private: bool) -> str:
    """Upload a folder as a model repository, which is created if it does not exist; returns its URL.

    The upload is one commit: one that fails half-way leaves the repository as it was, or empty, and one whose last
    answer is lost is complete.

    Raises `ModelError` for an invalid name, a missing login, or a failed upload.
    """
    limit_hub_requests()
    api = HfApi()
    try:
        url = api.create_repo(name, private=private, exist_ok=True)
    except _HUB_ERRORS as error:
        raise ModelError(
            f"{folder} could not be uploaded as {name}: {_first_line(error)}. Log in with `hf auth login`, or set "
            "HF_TOKEN, and name a repository that you may write, such as my-organization/my-model. The export itself "
            "is complete."
        ) from error
    try:
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Upload a model trained with Strop"
        )
    except _HUB_ERRORS as error:
        raise ModelError(
            f"The upload of {folder} to {url} failed: {_first_line(error)}. The repository has no part of the model, "
            "or all of it if only the last answer was lost, since an upload is one commit. The export is complete: "
            f"the same command replaces it and uploads again, and `hf upload {name} {folder}` uploads it as it is. "
            "After 401 or 403, log in with `hf auth login` as a user who may write there."
        ) from error
    return str(url)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()[:1]
    kind = "" if isinstance(error, (_HTTP_ERROR, HFValidationError, OSError)) else f"{type(error).__name__}: "
    return f"{kind}{text[0].rstrip('.')}" if text else type(error).__name__
