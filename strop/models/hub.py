"""Reachability of the Hugging Face hub: one short attempt before its library, which retries for most of a minute."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants, try_to_load_from_cache

from strop.config.paths import is_local
from strop.errors import ModelError
from strop.workers.hub_requests import hub_fault, limit_hub_requests, warn_of_cache

_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")
"""Files of which the cache has at least one if it has the model or its tokenizer."""


def check_hub(key: str, path: str) -> None:
    """Raise `ModelError` for a name on the hub that the cache does not have while the hub cannot be reached."""
    if is_local(path):
        return
    limit_hub_requests()
    if is_cached(path):
        return
    if (fault := offline_fault(key, path)) is not None:
        raise ModelError(fault)
    if (fault := hub_fault(constants.ENDPOINT)) is not None:
        raise ModelError(_not_reached(key, path, f"{constants.ENDPOINT} cannot be reached ({fault})"))


def offline_fault(key: str, path: str) -> str | None:
    """The fault of a name on the hub that the cache does not have where the environment forbids to ask the hub."""
    if not constants.HF_HUB_OFFLINE or is_cached(path):
        return None
    return _not_reached(key, path, "HF_HUB_OFFLINE is set, and the cache of this machine does not have it")


def _not_reached(key: str, path: str, reason: str) -> str:
    return (
        f"{key}: there is no folder {path} here, and no model could be loaded from the Hugging Face hub under this "
        f"name: {reason}. Write the path of a model folder, or a name of the hub (owner/name) that this machine can "
        "reach or has in its cache."
    )


def cached_folder(name: str) -> Path | None:
    """The folder of a model in the cache of this machine; None where the cache does not have its config.json."""
    try:
        file = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no valid name
        return None
    return Path(file).parent if isinstance(file, str) else None


def is_cached(name: str) -> bool:
    """Whether the cache of this machine has files of a model or its tokenizer, or the name is none of the hub."""
    try:
        return any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES)
    except ValueError:  # no valid name
        return True


def is_read_from_cache(path: str) -> bool:
    """Whether only the cache is read for a name on the hub, because the hub does not answer and the cache has it."""
    if is_local(path) or constants.HF_HUB_OFFLINE or not is_cached(path):
        return False
    fault = hub_fault(constants.ENDPOINT)
    if fault is not None:
        warn_of_cache(path, constants.ENDPOINT, fault)
    return fault is not None
