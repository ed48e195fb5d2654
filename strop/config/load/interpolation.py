"""Resolution of interpolations: `${data.max_prompt_tokens}`, `${oc.env:HOME}`, `${oc.env:DATA,data}`."""

from __future__ import annotations

import re
from typing import Any

from strop.config.environment_values import may_have_secret, remember_environment
from strop.config.load.config_tree import (
    ConfigTree,
    KeyPath,
    Locate,
    check_interpolations,
    check_values,
    iter_values,
    references,
    split_key,
    value_at,
)
from strop.errors import ConfigError

_UNSET = re.compile(r"Environment variable '([^']*)' not found")
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}", re.ASCII)
"""An interpolation that names a key from the top."""
_OF_REFERENCES = re.compile(rf"(?:[^$\\]|{_REFERENCE.pattern})+", re.ASCII)
"""A text whose interpolations all name a key from the top."""
_OF_ENVIRONMENT = re.compile(r"(?:[^$\\]|\$\{oc\.env:[^${}\\]*\})+")
"""A text whose interpolations all name an environment variable, so that it depends on no other value."""
_PLAIN_TYPES = (str, int, float, bool, type(None))

MISSING = "???"
"""OmegaConf's mark of a value that must be given."""


class UnresolvedError(ConfigError):
    """A value that cannot be resolved."""

    def __init__(self, message: str, keys: KeyPath) -> None:
        super().__init__(message)
        self.keys = keys


def resolve_interpolations(values: dict[str, Any], locate: Locate) -> dict[str, Any]:
    """Resolve all interpolations as OmegaConf does. Raises UnresolvedError for one that cannot be resolved, and
    ConfigError for values beyond the limits."""
    check_interpolations(values, locate)
    for _, value in iter_values(values):
        if isinstance(value, str):
            remember_environment(value)
    try:
        resolved = _resolve(values, ConfigTree(values))
    except _NeedsOmegaConfError:
        resolved = _resolve_with_omegaconf(values, locate)
    check_values(resolved, locate)
    return {str(key): value for key, value in resolved.items()}


class _NeedsOmegaConfError(Exception):
    """A configuration with more than plain values and simple interpolations, or with an error."""


def _resolve(value: Any, tree: ConfigTree) -> Any:
    """A value with its interpolations resolved. OmegaConf would build a node for each of the many values without one.

    Raises _NeedsOmegaConfError for all that only OmegaConf resolves or explains.
    """
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            raise _NeedsOmegaConfError
        return {key: _resolve(item, tree) for key, item in value.items()}
    if type(value) is list:
        return [_resolve(item, tree) for item in value]
    if type(value) is str and "${" in value:
        value = _resolve_text(value, tree)
    elif type(value) not in _PLAIN_TYPES:
        raise _NeedsOmegaConfError
    if value == MISSING:
        raise _NeedsOmegaConfError
    return value


def _resolve_text(text: str, tree: ConfigTree) -> Any:
    if _OF_ENVIRONMENT.fullmatch(text):
        return _to_container({"text": text})["text"]
    if not _OF_REFERENCES.fullmatch(text):
        raise _NeedsOmegaConfError

    def target(match: re.Match[str]) -> Any:
        keys = split_key(match[1])
        if not tree.has(keys):
            raise _NeedsOmegaConfError
        return _resolve(tree.get(keys), tree)

    def target_text(match: re.Match[str]) -> str:
        value = target(match)
        if isinstance(value, dict | list):
            raise _NeedsOmegaConfError
        return str(value)

    whole = _REFERENCE.fullmatch(text)
    return target(whole) if whole else _REFERENCE.sub(target_text, text)


def _to_container(values: dict[str, Any]) -> dict[Any, Any]:
    """The resolved values. Raises _NeedsOmegaConfError for an error, whose place these values may not know."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(values), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise _NeedsOmegaConfError from error
    assert isinstance(resolved, dict)
    return resolved


def _resolve_with_omegaconf(values: dict[str, Any], locate: Locate) -> dict[Any, Any]:
    """The values, all resolved by OmegaConf. Raises UnresolvedError."""
    try:
        return _to_container(values)
    except _NeedsOmegaConfError as failure:
        error: Any = failure.__cause__
        keys = split_key(re.sub(r"\[(\d+)\]", r".\1", error.full_key or ""))
        raise UnresolvedError(f"{locate(keys)}: {_reason(error)}.", keys) from None


def environment_texts(values: dict[str, Any]) -> dict[KeyPath, str]:
    """Return the texts that take a possible secret from the environment, themselves or through another key."""

    def depends(value: Any, at: KeyPath, above: tuple[KeyPath, ...]) -> bool:
        if at in above:
            return False
        if isinstance(value, dict | list):
            return any(
                depends(item, keys, (*above, at)) for keys, item in iter_values(value, at) if keys != at
            )
        if not isinstance(value, str) or "${" not in value:
            return False
        named = references(value, at)
        return may_have_secret(value) or any(
            depends(value_at(values, keys), keys, (*above, at)) for keys in named
        )

    return {
        keys: value
        for keys, value in iter_values(values)
        if isinstance(value, str) and depends(value, keys, ())
    }


def _reason(error: Exception) -> str:
    text = str(error).split("\n    full_key")[0]
    unset = _UNSET.search(text)
    if unset:
        name = unset[1]
        return f"the environment variable {name!r} is not set; set it, or write ${{oc.env:{name},default}}"
    text = f"{text[0].lower()}{text[1:]}"
    kind = type(error).__name__
    if kind == "MissingMandatoryValue":
        return "'???' marks a value that must be given; write it in the file or as an override"
    if kind == "InterpolationKeyError":
        return f"{text}; ${{...}} needs the full dotted key of another value of this configuration"
    if kind == "UnsupportedInterpolationType":
        return f"{text}; write ${{a.key}}, ${{oc.env:NAME}} or ${{oc.decode:...}}"
    if kind == "GrammarParseError":
        return f"the interpolation cannot be parsed ({text}); write a literal '${{' as '\\${{'"
    return " ".join(text.split()).rstrip(".")
