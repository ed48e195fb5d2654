"""Parsing of tool calls in a model's reply, in the format of its chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

ToolCallFormat = Literal["hermes", "json", "qwen3_coder", "gpt_oss"]
"""`hermes`: JSON inside <tool_call> tags, the format of Hermes and Qwen; `json`: only JSON, the format of
Llama 3; `qwen3_coder`: <function=name> and <parameter=name> inside <tool_call> tags, the format of Qwen3-Coder
and Qwen3.5; `gpt_oss`: messages to functions.name in the Harmony format of gpt-oss, with its special tokens."""

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>(.*?)(?:</function>\s*|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)
_HARMONY = re.compile(
    r"(?:<\|start\|>)?([^<]*)(?:<\|channel\|>([^<]*))?(?:<\|constrain\|>[^<]*)?<\|message\|>(.*?)"
    r"(?:<\|(?:call|end|return)\|>|$)",
    re.DOTALL,
)
"""A message of the Harmony format: role and recipient, channel and recipient, content
(cookbook.openai.com/articles/openai-harmony)."""
_RECIPIENT = re.compile(r"to=functions\.(\S+)")
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
    if template is not None and "<|channel|>" in template:
        return "gpt_oss"
    if template is None or "<tool_call>" not in template:
        return "json"
    return "qwen3_coder" if "<function=" in template else "hermes"


def parse_reply(text: str, form: ToolCallFormat, tools: Sequence[Mapping[str, Any]] = ()) -> ParsedReply:
    """Split a reply into content and tool calls. Never raises: a call that cannot be parsed has a
    `parse_error`.

    `tools` are the descriptions of the tools, from which `qwen3_coder` takes the types of arguments. The text of
    `gpt_oss` has its special tokens.
    """
    if form == "gpt_oss":
        return _parse_harmony(text)
    if form != "json":
        inside = _TAGGED.findall(text)
        calls = tuple(
            map(_read, inside) if form == "hermes" else (_read_tagged(call, tools) for call in inside)
        )
        return ParsedReply(_TAGGED.sub("", text).strip(), calls)
    stripped = text.strip()
    if not stripped.startswith("{") or not re.search(r'"name"\s*:', stripped):
        return ParsedReply(text, ())
    return ParsedReply("", (_read(stripped),))


def _parse_harmony(text: str) -> ParsedReply:
    """The calls and the content of a reply of gpt-oss; its channel `analysis`, the reasoning, is neither."""
    content, calls = [], []
    for role, channel, message in _HARMONY.findall(text):
        recipient = _RECIPIENT.search(f"{role} {channel}")
        if recipient is not None:
            calls.append(_read_arguments(recipient[1], message))
        elif not channel.startswith("analysis"):
            content.append(message)
    return ParsedReply("\n".join(content) if content or calls else text, tuple(calls))


def parse_chat_reply(text: str, tools: Sequence[Any], template: str | None) -> ParsedReply:
    """Parse a reply for a client of a chat endpoint: without tools, or if a call cannot be parsed, the
    whole reply is content."""
    if tools:
        reply = parse_reply(text, tool_call_format(template), tools)
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
    return _read_arguments(name, value.get("arguments", value.get("parameters", {})))


def _read_arguments(name: str, arguments: Any) -> ToolCall:
    """A call with its arguments as an object, or as its JSON text."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ToolCall(name, {}, f"its arguments are not JSON: {_quoted(arguments)}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, f"its arguments are not an object: {_quoted(json.dumps(arguments))}")
    return ToolCall(name, arguments)


def _read_tagged(text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    found = _FUNCTION.fullmatch(text)
    if found is None:
        return ToolCall("", {}, f"a call must be <function=name>...</function>, not {_quoted(text)}")
    name, inside = found.groups()
    types = _parameter_types(name, tools)
    return ToolCall(name, {key: _typed(value, types.get(key)) for key, value in _PARAMETER.findall(inside)})


def _parameter_types(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """JSON type of each parameter of a tool; empty for an unknown tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: value.get("type") for key, value in properties.items()}
    return {}


def _typed(text: str, json_type: Any) -> Any:
    """The value of a parameter: the text itself for text and unknown types, otherwise JSON where it is valid."""
    if json_type in (None, "string"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)


def _quoted(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}..."
