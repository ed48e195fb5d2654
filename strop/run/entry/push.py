"""Upload of an exported model to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from strop.errors import ModelError

_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
"""Base of all errors of the HTTP library that huggingface_hub uses, which differs between its versions."""


def push_to_hub(folder: Path, name: str, *, private: bool) -> str:
    """Upload a folder as a model repository, which is created if it does not exist; returns its URL.

    The upload is one commit: one that fails half-way leaves the repository as it was, or empty.

    Raises `ModelError` for an invalid name, a missing login, or a failed upload.
    """
    api = HfApi()
    try:
        url = api.create_repo(name, private=private, exist_ok=True)
    except (_HTTP_ERROR, HFValidationError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{folder} could not be uploaded as {name}: {first} Log in with `hf auth login`, or set HF_TOKEN, and name "
            "a repository that you may write, such as my-organization/my-model. The export itself is complete."
        ) from error
    try:
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Upload a model trained with Strop"
        )
    except (_HTTP_ERROR, OSError, RuntimeError, ValueError) as error:  # RuntimeError: of the transfer library
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ModelError(
            f"The upload of {folder} to {url} failed: {first}. The repository has no part of the model, since "
            "an upload is one commit. The export itself is complete: the same command replaces it and uploads again, "
            f"and `hf upload {name} {folder}` uploads it as it is. After 401 or 403, log in with `hf auth login` as a "
            "user who may write there."
        ) from error
    return str(url)
