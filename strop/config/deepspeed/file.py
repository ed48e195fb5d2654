"""Reader of DeepSpeed configuration files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strop.config.load.value_limits import is_deeper
from strop.config.load.yaml_file import read_bounded
from strop.config.load.yaml_parser import MAX_DEPTH
from strop.config.paths import expand_user
from strop.errors import ConfigError


def read_deepspeed_file(path: str | Path) -> dict[str, Any]:
    """The sections of a file. Raises ConfigError unless it is a JSON object."""
    try:
        values = json.loads(read_bounded(expand_user(path), regular=True))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None
    if is_deeper(values, MAX_DEPTH):
        raise ConfigError(f"{path} nests more than {MAX_DEPTH} objects or lists.")
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is not a JSON object; write a DeepSpeed configuration.")
    return values
