"""Values that a configuration took from environment variables, which this process prints and saves by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from strop.config.paths import expand_user

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
