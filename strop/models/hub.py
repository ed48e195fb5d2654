"""Reachability of the Hugging Face hub: one short attempt before its library, which retries for most of a minute."""

from __future__ import annotations

import ssl
from functools import cache
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from huggingface_hub import constants, try_to_load_from_cache

from strop.config.paths import is_local
from strop.errors import ModelError

_TIMEOUT_SECONDS = 5.0
_FILES = ("config.json", "tokenizer_config.json", "tokenizer.json")
"""Files of which the cache has at least one if it has the model or its tokenizer."""


def check_hub(key: str, path: str) -> None:
    """Raise `ModelError` for a name on the hub that the cache does not have while the hub cannot be reached."""
    if is_local(path) or constants.HF_HUB_OFFLINE or _is_cached(path):
        return
    if (fault := _connection_fault(constants.ENDPOINT)) is not None:
        raise ModelError(
            f"{key}: there is no folder {path} here, and no model could be loaded from the Hugging Face hub "
            f"under this name: {constants.ENDPOINT} cannot be reached ({fault}). Write the path of a model folder, or "
            "a name of the hub (owner/name) that this machine can reach or has in its cache."
        )


def _is_cached(name: str) -> bool:
    try:
        return any(isinstance(try_to_load_from_cache(name, file), str) for file in _FILES)
    except ValueError:  # no valid name
        return True


@cache
def _connection_fault(url: str) -> str | None:
    """Reason that no connection to a server could be made; None if it answers, even with an error."""
    if not url.startswith(("http://", "https://")):
        return "it is not an http URL"
    try:
        with urlopen(Request(url, method="HEAD"), timeout=_TIMEOUT_SECONDS):
            return None
    except HTTPError:
        return None
    except URLError as error:
        return None if isinstance(error.reason, ssl.SSLError) else str(error.reason)
    except OSError as error:
        return str(error) or type(error).__name__
