"""Messages and tools of a request, converted to the form that chat templates accept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.data.encoding.messages import Tools, to_messages, to_tools
from strop.errors import DataError
from strop.inference.endpoint.errors import BadRequest
from strop.inference.endpoint.json_body import parse_json, quote
from strop.types import Message


def parse_messages(value: Any) -> tuple[Message, ...]:
    """Convert `messages`: contents become text or parts, the arguments of tool calls objects. Raises `BadRequest`."""
    if not isinstance(value, list) or not value:
        raise BadRequest(f"messages is {quote(value)}; it must be a list of one or more messages")
    converted = [_message(message, f"messages[{number}]") for number, message in enumerate(value)]
    try:
        return to_messages(converted, "messages")
    except DataError as error:
        raise BadRequest(str(error)) from error


def parse_tools(value: Any) -> Tools:
    """Convert `tools`. Raises `BadRequest`."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRequest(f"tools is {quote(value)}; it must be a list of functions")
    for number, tool in enumerate(value):
        where = f"tools[{number}]"
        function = _require(tool, dict, where).get("function")
        _require(_require(function, dict, f"{where}.function").get("name"), str, f"{where}.function.name")
        _require(function.get("parameters") or {}, dict, f"{where}.function.parameters")
    return to_tools(value, "tools")


def _message(message: Any, where: str) -> dict[str, Any]:
    role = _require(_require(message, dict, where).get("role"), str, f"{where}.role")
    calls = _require(message.get("tool_calls") or [], list, f"{where}.tool_calls")
    for key in ("name", "tool_call_id"):
        _require(message.get(key) or "", str, f"{where}.{key}")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    converted = {**message, "content": _content(content, f"{where}.content"), "tool_calls": None}
    if calls:
        converted["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)
        ]
    return converted


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Text; or, if it has images, a list of parts."""
    if not isinstance(content, list):
        text: str = _require(content, str, where)
        return text
    parts = [_part(_require(part, dict, f"a part of {where}"), where) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": _require(part.get("text"), str, f"{where}, text of a part")}
    if kind != "image_url":
        raise BadRequest(
            f"{where} has a part of type {quote(kind)}; only text and image_url are supported here"
        )
    named = _require(part.get("image_url"), dict, f"{where}, image_url of a part")
    url = _require(named.get("url"), str, f"{where}, url of a part")
    if not url.startswith(("data:", "http://", "https://")):
        raise BadRequest(f"{where}: the url {quote(url)} must begin with data:image/, http:// or https://")
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = _require(_require(call, dict, where).get("function"), dict, f"{where}.function")
    _require(function.get("name"), str, f"{where}.function.name")
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        arguments = parse_json(arguments, f"{where}.function.arguments")
    _require(arguments, dict, f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


_KINDS: Mapping[type, str] = {dict: "an object", list: "a list", str: "text"}


def _require(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise BadRequest(f"{where} is {quote(value)}; it must be {_KINDS[kind]}")
    return value
