"""Redaction of secrets in saved run files, in `strop explain` and in messages."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_SHOWN = 60

_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_SECRET_WORDS = frozenset(
    {
        "password",
        "passwd",
        "passphrase",
        "secret",
        "secrets",
        "credential",
        "credentials",
        "apikey",
        "signature",
    }
)
_SECRET_PAIRS = frozenset(
    {
        "api key",
        "access key",
        "private key",
        "account key",
        "shared key",
        "connection string",
        "subscription key",
    }
)
_ORDINARY_TOKENS = frozenset(
    {
        "eos",
        "bos",
        "pad",
        "unk",
        "cls",
        "sep",
        "mask",
        "end",
        "start",
        "stop",
        "special",
        "image",
        "per",
        "first",
    }
)
_VARIABLE_NAMES = frozenset({"api_key_env"})
"""Keys that hold the name of an environment variable, which is not secret."""
_URL_USER = re.compile(r"(?<=://)[^/\s@?#]+@")
_URL_PARAMETER = re.compile(r"([?&;])([^=&;\s#]+)=([^&;\s#]+)")
_URL_SECRETS = frozenset({"sig", "key", "code", "auth"})


def is_secret(key: str) -> bool:
    """Return whether a key names a secret, such as `api_key`, `hf_token`, `dbPassword`; not `eos_token`."""
    if key in _VARIABLE_NAMES:
        return False
    words = [word.lower() for word in _WORDS.findall(key)]
    if any(word in _SECRET_WORDS for word in words):
        return True
    if any(f"{first} {second}" in _SECRET_PAIRS for first, second in itertools.pairwise(words)):
        return True
    if not words or words[-1] != "token":
        return False
    return len(words) == 1 or words[-2] not in _ORDINARY_TOKENS


def redact_text(text: str) -> str:
    """Redact users, passwords and tokens in the URLs of a text."""

    def parameter(match: re.Match[str]) -> str:
        name = match[2]
        hide = is_secret(name) or name.lower() in _URL_SECRETS
        return f"{match[1]}{name}={HIDDEN}" if hide else match[0]

    if "://" not in text:
        return text
    return _URL_PARAMETER.sub(parameter, _URL_USER.sub(f"{HIDDEN}@", text))


def redact(value: Any, key: str = "") -> Any:
    """Replace secrets in a value, and in values inside it, with `***`."""
    if isinstance(value, Mapping):
        return {name: redact(item, key if is_secret(key) else str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, key) for item in value]
    if is_secret(key) and value is not None and not isinstance(value, bool):
        return HIDDEN
    return redact_text(value) if isinstance(value, str) else value


def redacted_repr(value: Any, key: str = "") -> str:
    """Format the value of a key for a message: secrets are redacted, and a long value is cut."""
    text = HIDDEN if is_secret(key) else redact_text(repr(redact(value, key)))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def redact_override(text: str) -> str:
    """Redact the secrets of an override such as `a.api_key=x`."""
    key, equals, value = text.partition("=")
    hide = equals and value and is_secret(key.rsplit(".", 1)[-1])
    return f"{key}={HIDDEN}" if hide else redact_text(text)
