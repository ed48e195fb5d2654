"""Conversion of a row's values to messages and tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strop.data.images.messages import IMAGE_PARTS
from strop.errors import DataError
from strop.types import Message

Tools = tuple[Mapping[str, Any], ...]
"""JSON schemas of tools, as chat templates take them."""


def to_messages(value: Any, where: str, *, system: str | None = None) -> tuple[Message, ...]:
    """Convert the value of a prompt column to messages; plain text becomes one user message.

    `system` is inserted before messages that have no system message. Keys with null values, which Parquet
    adds, are removed. Raises `DataError` for a value that is neither text nor messages.
    """
    if isinstance(value, str):
        messages = [{"role": "user", "content": value}]
    elif isinstance(value, Sequence) and value:
        messages = [_message(message, f"{where}, message {i + 1}") for i, message in enumerate(value)]
    else:
        raise DataError(
            f"{where}: the prompt is {_brief(value)}. A prompt must be plain text, or a list of messages "
            "such as "
            '[{"role": "user", "content": "..."}].'
        )
    if system is not None and all(message["role"] != "system" for message in messages):
        messages.insert(0, {"role": "system", "content": system})
    return tuple(messages)


def _message(value: Any, where: str) -> dict[str, Any]:
    calls = isinstance(value, Mapping) and value.get("tool_calls")
    if calls and value.get("content") is None:
        value = {**value, "content": ""}  # a message that calls tools may have no content
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str) or "content" not in value:
        raise DataError(
            f"{where} is {_brief(value)}. A message must have a role and a content, such as "
            '{"role": "user", "content": "..."}.'
        )
    content = value["content"]
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = [_content_part(part, where) for part in content]
    return {"role": value["role"], "content": content} | {
        key: _without_nulls(item)
        for key, item in value.items()
        if key not in ("role", "content") and item is not None
    }


def _content_part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" and kind not in IMAGE_PARTS:
        raise DataError(
            f"{where} has a content part that is neither text nor an image ({_brief(part)}); Strop does not train on "
            "video or audio."
        )
    part = {key: item for key, item in part.items() if item is not None}
    if kind == "text" and not isinstance(part.get("text"), str):
        raise DataError(f"{where} has a content part of type text without a text: {_brief(part)}.")
    return part


def to_tools(value: Any, where: str) -> Tools:
    """Convert the value of a tools column: a list of JSON schemas or its JSON text. Raises `DataError`."""
    if value is None:
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: the tools are text that is not JSON ({error}).") from None
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise DataError(
            f"{where}: the tools are {_brief(value)}, not a list of objects such as "
            '{"type": "function", "function": {"name": ..., "parameters": {...}}}.'
        )
    return tuple(_without_nulls(tool) for tool in value)


def _without_nulls(value: Any) -> Any:
    """The value without null keys: a Parquet column has the keys of all rows in every row, as nulls."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return value


def _brief(value: Any) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
