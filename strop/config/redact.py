"""Secrets are never shown: not in a saved run file, not in `explain`, not in a message."""

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
_URL_USER = re.compile(r"(?<=://)[^/\s@?#]+@")
_URL_PARAMETER = re.compile(r"([?&;])([^=&;\s#]+)=([^&;\s#]+)")
_URL_SECRETS = frozenset({"sig", "key", "code", "auth"})


def is_secret(key: str) -> bool:
    """Whether a key names a secret: `api_key`, `hf_token`, `dbPassword`; not `max_tokens`, `eos_token`."""
    words = [word.lower() for word in _WORDS.findall(key)]
    if any(word in _SECRET_WORDS for word in words):
        return True
    if any(f"{first} {second}" in _SECRET_PAIRS for first, second in itertools.pairwise(words)):
        return True
    if not words or words[-1] != "token":
        return False
    return len(words) == 1 or words[-2] not in _ORDINARY_TOKENS


def redact_text(text: str) -> str:
    """The text with users, passwords and tokens taken out of the URLs in it."""

    def parameter(match: re.Match[str]) -> str:
        name = match[2]
        hide = is_secret(name) or name.lower() in _URL_SECRETS
        return f"{match[1]}{name}={HIDDEN}" if hide else match[0]

    if "://" not in text:
        return text
    return _URL_PARAMETER.sub(parameter, _URL_USER.sub(f"{HIDDEN}@", text))


def redact(value: Any, key: str = "") -> Any:
    """The value, and all in it, with secrets shown as `***`."""
    if isinstance(value, Mapping):
        return {name: redact(item, key if is_secret(key) else str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, key) for item in value]
    if is_secret(key) and value is not None and not isinstance(value, bool):
        return HIDDEN
    return redact_text(value) if isinstance(value, str) else value


def brief(value: Any, key: str = "") -> str:
    """The value of a key as a message shows it: without secrets, and only the beginning of a long one."""
    text = HIDDEN if is_secret(key) else redact_text(repr(redact(value, key)))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def redact_override(text: str) -> str:
    """An override such as `a.api_key=x` as it may be shown."""
    key, equals, value = text.partition("=")
    hide = equals and value and is_secret(key.rsplit(".", 1)[-1])
    return f"{key}={HIDDEN}" if hide else redact_text(text)
