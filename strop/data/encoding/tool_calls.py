"""Parsing of tool calls in a model's reply, in the format of its chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ToolCallFormat = Literal["hermes", "json"]
"""`hermes`: JSON inside <tool_call> tags, the format of Hermes and Qwen; `json`: only JSON, the format of
Llama 3."""

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_LONGEST_QUOTE = 200


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a reply."""

    name: str
    arguments: Mapping[str, Any]
    parse_error: str | None = None
    """Why the call could not be parsed, as a message for the model; None for a valid call."""


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply, split into its content and its tool calls."""

    content: str
    calls: tuple[ToolCall, ...]


def tool_call_format(template: str | None) -> ToolCallFormat:
    """The format in which a chat template writes tool calls."""
    return "hermes" if template is not None and "<tool_call>" in template else "json"


def parse_reply(text: str, form: ToolCallFormat) -> ParsedReply:
    """Split a reply into content and tool calls. Never raises: a call that cannot be parsed has a
    `parse_error`."""
    if form == "hermes":
        calls = tuple(_read(inside) for inside in _TAGGED.findall(text))
        return ParsedReply(_TAGGED.sub("", text).strip(), calls)
    stripped = text.strip()
    if not stripped.startswith("{") or not re.search(r'"name"\s*:', stripped):
        return ParsedReply(text, ())
    return ParsedReply("", (_read(stripped),))


def parse_chat_reply(text: str, tools: Sequence[Any], template: str | None) -> ParsedReply:
    """Parse a reply for a client of a chat endpoint: without tools, or if a call cannot be parsed, the
    whole reply is content."""
    if tools:
        reply = parse_reply(text, tool_call_format(template))
        if all(call.parse_error is None for call in reply.calls):
            return reply
    return ParsedReply(text, ())


def _read(text: str) -> ToolCall:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, f"this is not JSON ({error}): {_quoted(text)}")
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return ToolCall("", {}, f'a call must be {{"name": ..., "arguments": {{...}}}}, not {_quoted(text)}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return ToolCall(name, {}, f"its arguments are not JSON: {_quoted(arguments)}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, f"its arguments are not an object: {_quoted(json.dumps(arguments))}")
    return ToolCall(name, arguments)


def _quoted(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
