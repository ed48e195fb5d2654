"""Redaction of secrets in saved run files, in `strop explain`, in logs and in messages; values that a configuration
took from environment variables are printed and saved by name."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from strop.config.paths import expand_user
from strop.printable import printable

_SHORTEST = 6
"""Number of characters below which a value is too common to be replaced in other texts."""
_VARIABLE = re.compile(r"\$\{\s*oc\.env:\s*([A-Za-z_]\w*)")
_NUMBER = re.compile(r"[-+.\d_eE]+|true|false|null", re.IGNORECASE)
_found: dict[str, str] = {}


def remember_environment(text: str) -> None:
    """Remember the values of the environment variables that a text with interpolations names."""
    for name in _VARIABLE.findall(text):
        value = os.environ.get(name)
        if value and not _is_ordinary(value):
            _found[value] = f"${{oc.env:{name}}}"


def may_have_secret(text: str) -> bool:
    """Whether a text takes a value from the environment that is not the path of a file or folder of this machine."""
    names = _VARIABLE.findall(text)
    if len(names) < text.count("oc.env"):
        return True
    values = [os.environ.get(name) for name in names]
    return any(value and not _is_local_path(value) for value in values)


def remember_secret(name: str, value: str) -> None:
    """Remember the value of an environment variable that holds a secret."""
    if len(value) >= _SHORTEST:
        _found[value] = f"${{oc.env:{name}}}"


def read_secret(name: str) -> str | None:
    """The value of an environment variable that holds a secret, remembered; None if it is not set or empty."""
    value = os.environ.get(name)
    if not value:
        return None
    remember_secret(name, value)
    return value


@contextmanager
def set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the context, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def forget_environment() -> None:
    """Forget all values, at the start of a command."""
    _found.clear()


def name_environment(value: Any) -> Any:
    """Replace values from the environment by `${oc.env:NAME}`, in a text and in all texts inside a value."""
    if isinstance(value, str):
        for found in sorted(_found, key=len, reverse=True):
            if found in value:
                value = value.replace(found, _found[found])
        return value
    if isinstance(value, dict):
        return {key: name_environment(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [name_environment(item) for item in value]
    return value


def _is_ordinary(value: str) -> bool:
    """Whether a value is short, a number, or a local path, all of which are printed as they are."""
    return len(value) < _SHORTEST or bool(_NUMBER.fullmatch(value)) or _is_local_path(value)


def _is_local_path(value: str) -> bool:
    try:
        path = expand_user(value)
        return path.exists() or (path.is_absolute() and path.parent.is_dir())
    except (OSError, ValueError):
        return False


_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_SECRETS = frozenset(
    {
        *("password", "passwd", "passphrase", "passcode", "pwd", "dsn", "secret", "secrets", "credential"),
        *("credentials", "authorization", "cookie", "cookies", "signature", "jwt", "bearer"),
        *("apikey", "accesskey", "secretkey", "privatekey", "accountkey", "authtoken", "accesstoken"),
    }
)
_PAIRS = frozenset(
    {
        *(
            "api key",
            "access key",
            "private key",
            "account key",
            "shared key",
            "subscription key",
            "secret key",
        ),
        *(
            "master key",
            "signing key",
            "encryption key",
            "service key",
            "ssh key",
            "storage key",
            "session key",
        ),
        *("connection string", "api keys", "access keys", "api tokens", "access tokens", "auth tokens"),
        *("client key", "deploy key", "license key", "user key", "token value", "auth header", "auth key"),
    }
)
_PROVIDERS = frozenset({"openai", "azure", "anthropic", "wandb", "aws", "gcp", "hf", "huggingface", "google"})
"""First words of keys that end in `key` and hold a secret, such as `openai_key`."""
_ORDINARY_TOKENS = frozenset(
    {
        *("eos", "bos", "pad", "unk", "cls", "sep", "mask", "end", "start", "stop", "special", "image"),
        *("per", "first", "last", "next", "new", "each", "think", "chat", "add", "use"),
    }
)
"""Words before `token` in the name of a token of the vocabulary."""
_VARIABLE_NAMES = frozenset({"api_key_env"})
"""Keys that hold the name of an environment variable, which is not secret."""


def is_secret(key: str) -> bool:
    """Return whether a key names a secret, such as `api_key`, `hf_token`, `dbPassword`; not `eos_token`."""
    if key in _VARIABLE_NAMES:
        return False
    words = [word.lower() for word in _WORDS.findall(key)]
    if any(word in _SECRETS or "passw" in word for word in words):
        return True
    if any(f"{first} {second}" in _PAIRS for first, second in itertools.pairwise(words)):
        return True
    match words:
        case [*before, "token"]:
            return not before or before[-1] not in _ORDINARY_TOKENS
        case [*before, "pass" | "auth"]:
            return before[-1:] not in (["first"], ["second"], ["forward"], ["backward"], ["n"])
        case [first, *_, "key"]:
            return first in _PROVIDERS
    return False


HIDDEN = "***"
_SHOWN = 60
_URL = re.compile(r"(?P<scheme>\b[A-Za-z][\w+.-]{0,30}://)(?P<rest>[^\s'\"<>]+)")
_WHOLE_URL = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*://)(?P<rest>.+)", re.DOTALL)
_URL_PARAMETER = re.compile(r"([?&;])([^?=&;\s#]+)=([^&;\s#]+)")
_URL_SECRETS = frozenset({"sig", "key", "code", "auth"})
_INTERPOLATED_PASSWORD = re.compile(r"[^:@/?#${}]*:\$\{oc\.env:\w+\}")
_ASSIGNMENT = re.compile(r"(?<![\w.?&;-])([A-Za-z][\w.-]*)(\s?=\s?)([^\s,;&'\"]+|'[^']*'|\"[^\"]*\")")
_YAML_PAIR = re.compile(r"(?<=[{,])(\s*[\"']?)([\w-]+)([\"']?\s*:\s*)([^,}\]]+)")
_AUTHORIZATION = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}")
_WELL_KNOWN = re.compile(
    r"\b(?:hf_(?=\w{0,40}[0-9A-Z])[A-Za-z0-9]{8,}"  # Hugging Face
    r"|sk-(?=[\w-]{0,40}[0-9A-Z])[\w-]{8,}"  # OpenAI and others
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}"  # AWS, Google
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"  # GitHub, GitLab
    r"|xox[abprs]-[\w-]{10,}|eyJ[\w-]{8,500}\.[\w-]{8,2000}\.[\w-]*)"  # Slack, JSON web tokens
)
_AZURE = re.compile(
    r"\b((?:Account|SharedAccess|Shared)Key(?:Name)?=|SharedAccessSignature=|sig=)[^;&\s'\"]+"
)


def redact_text(text: str) -> str:
    """Redact credentials in the URLs of a text, in its assignments, and by their well-known forms."""
    text = _URL.sub(_redact_url, text) if "://" in text else text
    text = _AUTHORIZATION.sub(rf"\1 {HIDDEN}", _WELL_KNOWN.sub(HIDDEN, text))
    return _AZURE.sub(rf"\1{HIDDEN}", _ASSIGNMENT.sub(_redact_assignment, text)) if "=" in text else text


def safe_text(text: str) -> str:
    """A text for a terminal, a log or a record: without secrets, values of the environment by name, and
    without control characters."""
    return printable(redact_text(name_environment(text)))


def redact(value: Any, key: str = "") -> Any:
    """Replace secrets in a value, and in values inside it, with `***`."""
    if isinstance(value, Mapping):
        return {name: redact(item, key if is_secret(key) else str(name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, key) for item in value]
    if is_secret(key) and value is not None and not isinstance(value, bool):
        return HIDDEN
    if not isinstance(value, str):
        return value
    whole = _WHOLE_URL.fullmatch(value)
    return redact_text(_redact_url(whole) if whole else value)


def redacted_repr(value: Any, key: str = "") -> str:
    """Format the value of a key for a message: secrets are redacted, and a long value is cut."""
    text = HIDDEN if is_secret(key) else redact_text(repr(redact(value, key)))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def redact_override(text: str) -> str:
    """Redact the secrets of an override such as `a.api_key=x` or `a={api_key: x}`."""
    key, equals, value = text.partition("=")
    if equals and value and is_secret(key.rsplit(".", 1)[-1]):
        return f"{key}={HIDDEN}"
    return redact_text(_YAML_PAIR.sub(_redact_pair, text))


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Redact the secrets of a command line, `a.api_key=x`, `--api_key=x` or `--api_key x`."""
    before = ("", *arguments)
    return [
        HIDDEN if name.startswith("--") and is_secret(name) else safe_text(redact_override(text))
        for name, text in zip(before, arguments, strict=False)
    ]


def _redact_url(match: re.Match[str]) -> str:
    """Redact the user and password of a URL, and the secrets among its parameters.

    A password may contain any character: a URL with a colon before its path is cut up to its last `@`.
    """
    scheme, rest = match["scheme"], match["rest"]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    end = rest.rfind("@") if ":" in authority else authority.rfind("@")
    if end >= 0 and not _INTERPOLATED_PASSWORD.fullmatch(rest[:end]):
        rest = f"{HIDDEN}{rest[end:]}"
    return scheme + _URL_PARAMETER.sub(_redact_parameter, rest)


def _redact_parameter(match: re.Match[str]) -> str:
    name = match[2]
    hide = is_secret(name) or name.lower() in _URL_SECRETS
    return f"{match[1]}{name}={HIDDEN}" if hide else match[0]


def _redact_assignment(match: re.Match[str]) -> str:
    hide = is_secret(match[1].rpartition(".")[2]) and not match[3].startswith("${")
    return f"{match[1]}{match[2]}{HIDDEN}" if hide else match[0]


def _redact_pair(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{match[3]}{HIDDEN}" if is_secret(match[2]) else match[0]
