"""Resolution of interpolations: `${data.max_prompt_tokens}`, `${oc.env:HOME}`, `${oc.env:DATA,data}`."""

from __future__ import annotations

import re
from typing import Any

from strop.config.environment_values import may_have_secret, remember_environment
from strop.config.load.config_tree import KeyPath, Locate, iter_values, split_key
from strop.config.load.value_limits import (
    check_interpolations,
    check_values,
    references,
    value_at,
)
from strop.errors import ConfigError

_UNSET = re.compile(r"Environment variable '(.*?)' not found")


MISSING = "???"
"""OmegaConf's mark of a value that must be given."""


class UnresolvedError(ConfigError):
    """A value that cannot be resolved."""

    def __init__(self, message: str, keys: KeyPath) -> None:
        super().__init__(message)
        self.keys = keys


def resolve_interpolations(values: dict[str, Any], locate: Locate) -> dict[str, Any]:
    """Resolve all interpolations with OmegaConf. Raises UnresolvedError for one that cannot be resolved, and
    ConfigError for values beyond the limits."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    check_interpolations(values, locate)
    for _, value in iter_values(values):
        if isinstance(value, str):
            remember_environment(value)
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(values), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        keys = split_key(re.sub(r"\[(\d+)\]", r".\1", error.full_key or ""))
        raise UnresolvedError(f"{locate(keys)}: {_reason(error)}.", keys) from None
    assert isinstance(resolved, dict)
    check_values(resolved, locate)
    return {str(key): value for key, value in resolved.items()}


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
