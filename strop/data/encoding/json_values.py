"""Objects of messages, which a template that prints them prints as JSON, and never as Python does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strop.types import Message


class _PrintedAsJson:
    """A value whose text is its JSON."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False, default=str)


class _JsonObject(_PrintedAsJson, dict[str, Any]):
    """An object; for a template that reads its keys, or filters it by `tojson`, a dict."""


class _JsonList(_PrintedAsJson, list[Any]):
    """A list."""


def with_json_values(message: Message) -> dict[str, Any]:
    """The message, whose content as an object (a tool's result) and whose calls' arguments print as JSON."""
    shown = dict(message)
    if isinstance(shown["content"], Mapping):
        shown["content"] = _json_value(shown["content"])
    if shown.get("tool_calls"):
        shown["tool_calls"] = _json_value(shown["tool_calls"])
    return shown


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _JsonObject((key, _json_value(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return _JsonList(map(_json_value, value))
    return value
