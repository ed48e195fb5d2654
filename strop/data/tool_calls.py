"""Tool calls in a model's reply, in the form in which its chat template writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Format = Literal["hermes", "json"]
"""`hermes`: JSON inside <tool_call> tags, as Hermes and Qwen write it; `json`: JSON and nothing else, as
Llama 3 writes it."""

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_LONGEST_QUOTE = 200


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a reply asks for."""

    name: str
    arguments: Mapping[str, Any]
    fault: str | None = None
    """What is wrong with it, so that it cannot be made; the model should be told."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, its calls taken out."""

    content: str
    calls: tuple[ToolCall, ...]


def format_of(template: str | None) -> Format:
    """The form that a chat template writes calls in."""
    return "hermes" if template is not None and "<tool_call>" in template else "json"


def read_reply(text: str, form: Format) -> Reply:
    """What a reply says, and what it asks to have called. It never raises: a call that cannot be read
    has a `fault`."""
    if form == "hermes":
        calls = tuple(_read(inside) for inside in _TAGGED.findall(text))
        return Reply(_TAGGED.sub("", text).strip(), calls)
    stripped = text.strip()
    if not stripped.startswith("{") or not re.search(r'"name"\s*:', stripped):
        return Reply(text, ())
    return Reply("", (_read(stripped),))


def read_answer(text: str, tools: Sequence[Any], template: str | None) -> Reply:
    """A reply as a client of a chat endpoint is given it: without tools, or where one of its calls cannot be
    read, all of it is content."""
    if tools:
        reply = read_reply(text, format_of(template))
        if all(call.fault is None for call in reply.calls):
            return reply
    return Reply(text, ())


def _read(text: str) -> ToolCall:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return ToolCall("", {}, f"this is not JSON ({error}): {_quoted(text)}")
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return ToolCall("", {}, f'a call is {{"name": ..., "arguments": {{...}}}}, not {_quoted(text)}')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return ToolCall(name, {}, f"its arguments are no JSON: {_quoted(arguments)}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, f"its arguments are no object: {_quoted(json.dumps(arguments))}")
    return ToolCall(name, arguments)


def _quoted(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
