"""Interpolation: `${data.max_prompt_tokens}`, `${oc.env:HOME}`, `${oc.env:DATA,data}`."""

from __future__ import annotations

import re
from typing import Any

from strop.config.draft import Locate, split
from strop.errors import ConfigError

_UNSET = re.compile(r"Environment variable '(.*?)' not found")


def resolve(values: dict[str, Any], locate: Locate) -> dict[str, Any]:
    """The values with all interpolations put in, by OmegaConf. Raises ConfigError where one cannot be."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(values), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        keys = split(re.sub(r"\[(\d+)\]", r".\1", error.full_key or ""))
        raise ConfigError(f"{locate(keys)}: {_reason(error)}.") from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _reason(error: Exception) -> str:
    text = str(error).split("\n    full_key")[0]
    unset = _UNSET.search(text)
    if unset:
        name = unset[1]
        return f"the environment variable {name!r} is not set; set it, or write ${{oc.env:{name},default}}"
    text = f"{text[0].lower()}{text[1:]}"
    kind = type(error).__name__
    if kind == "MissingMandatoryValue":
        return "'???' stands for a value that must be given; give it in the file or as an override"
    if kind == "InterpolationKeyError":
        return f"{text}; ${{...}} names another value of this configuration by its whole dotted key"
    if kind == "UnsupportedInterpolationType":
        return f"{text}; there are ${{a.key}}, ${{oc.env:NAME}} and ${{oc.decode:...}}"
    if kind == "GrammarParseError":
        return f"the interpolation is not understood ({text}); a literal '${{' is written '\\${{'"
    return " ".join(text.split()).rstrip(".")
