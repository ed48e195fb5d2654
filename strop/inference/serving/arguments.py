"""Options that serving libraries share, and the check of `rollout.engine.engine_kwargs`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from strop.config.schema.inference_engine import ServingEngineConfig
from strop.config.schema.model import ModelConfig
from strop.config.suggest import did_you_mean
from strop.errors import ConfigError


def given_options(section: ServingEngineConfig, names: Mapping[str, str]) -> dict[str, Any]:
    """The section's options under the library's names; an option without a value is left out.

    `names` has the library's name of each field.
    """
    options = {name: getattr(section, field) for field, name in names.items()}
    return {name: value for name, value in options.items() if value is not None}


def check_engine_kwargs(
    section: ServingEngineConfig,
    names: Mapping[str, str],
    *,
    set_by_strop: Collection[str],
    known: Collection[str],
    owner: str,
) -> None:
    """Raise `ConfigError` for an argument that the library does not have, and for one that Strop sets.

    `names` has the library's name of each field, `known` are the library's arguments, and `owner` is its class of
    arguments, for messages.
    """
    fields_of = {name: field for field, name in names.items()}
    for name in section.engine_kwargs:
        key = f"rollout.engine.engine_kwargs.{name}"
        if name in fields_of:
            raise ConfigError(f"{key} is set by a field of its own; write rollout.engine.{fields_of[name]}.")
        if name in set_by_strop:
            raise ConfigError(f"{key} is set by Strop and cannot be changed; remove it.")
        if name not in known:
            raise ConfigError(
                f"{key} is not an argument of the installed {owner}{did_you_mean(name, known) or '.'} Remove it, or "
                "write one of its names."
            )


def engine_dtype(section: ServingEngineConfig, model: ModelConfig) -> str:
    """Data type of the engine's weights and computation."""
    return section.dtype if section.dtype != "model" else model.compute_dtype or model.dtype
