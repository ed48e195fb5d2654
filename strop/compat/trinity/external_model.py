"""Ledger rows of Trinity's `model.external_model`: the evaluation of a model behind an API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import (
    ForeignValues,
    KeyMapping,
    mapped,
    unless,
    versions,
    written_by,
)
from strop.compat.ledger.value_types import STRING, nullable
from strop.config.schema import Run
from strop.config.schema.inference_engine import OpenAiEngineConfig
from strop.errors import ConfigError

_AT = "model.external_model"
_OPENAI = "https://api.openai.com/v1"
"""Address that OpenAI's client uses where the environment variable is not set."""
_off = unless(f"{_AT}.enable", True)


def write_server(run: Run) -> Mapping[str, Any]:
    """Write that no server is used. Raises ConfigError for a run that uses one."""
    if isinstance(run.rollout.engine, OpenAiEngineConfig):
        raise ConfigError(
            "rollout.engine.type openai: Trinity takes the address of a server from an environment variable, so a "
            "configuration does not have it."
        )
    return {}


@written_by(write_server)
def server(foreign: ForeignValues) -> Mapping[str, Any]:
    """Read the server, whose address is in an environment variable."""
    if _off(foreign):
        return {}
    if foreign["mode"] != "bench":
        raise foreign.error_for(
            f"{_AT}.enable",
            f"{_AT}.enable is true, which only mode: bench supports; mode is {foreign['mode']}.",
        )
    engine = {
        "type": "openai",
        "base_url": os.environ.get(foreign[f"{_AT}.base_url_env"]) or _OPENAI,
        "model": foreign[f"{_AT}.model_name"] or foreign["model.model_path"],
        "api_key_env": foreign[f"{_AT}.api_key_env"],
        "api": "chat",
    }
    return {f"rollout.engine.{name}": value for name, value in engine.items()}


def _row(name: str, default: Any, field: str, note: str) -> KeyMapping:
    return mapped(
        f"{_AT}.{name}",
        default,
        f"rollout.engine.{field}",
        read=server,
        value_type=nullable(STRING),
        inactive=_off,
        note=note,
    )


ROWS = versions(
    mapped(
        f"{_AT}.enable",
        False,
        "rollout.engine.type",
        "rollout.engine.api",
        read=server,
        note="evaluates the model of an OpenAI-compatible server; model.model_path then names the tokenizer that "
        "counts tokens, a folder or a name on the Hub",
    ),
    _row("model_name", None, "model", "null means model.model_path"),
    _row(
        "base_url_env", "OPENAI_BASE_URL", "base_url", f"environment variable; {_OPENAI} where it is not set"
    ),
    _row("api_key_env", "OPENAI_API_KEY", "api_key_env", "environment variable"),
    since="0.6",
)
