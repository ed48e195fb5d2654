"""Parsing of tool calls in a model's reply, in the format of its chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, assert_never

ToolCallFormat = Literal["hermes", "json", "llama3_json", "qwen3_coder", "mistral", "deepseek", "gpt_oss"]
"""`hermes`: JSON inside <tool_call> tags, the format of Hermes, Qwen2.5 and Qwen3; `llama3_json` or `json`: only
JSON, the format of Llama 3; `qwen3_coder`: <function=name> and <parameter=name> inside <tool_call> tags, the format
of Qwen3-Coder and Qwen3.5; `mistral`: [TOOL_CALLS] before a list of JSON objects, or before each name with [ARGS]
before its arguments; `deepseek`: the tokens of DeepSeek-V3 and V3.1 around each name and its JSON; `gpt_oss`: messages
to functions.name in the Harmony format of gpt-oss, with its special tokens."""
FORMATS_WITH_SPECIAL_TOKENS: tuple[ToolCallFormat, ...] = ("mistral", "deepseek", "gpt_oss")
"""Formats whose marks may be special tokens, which a decoded reply lacks."""

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
_MISTRAL_CALL = re.compile(r"([^\s\[{]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)
_DEEPSEEK_CALLS = "<｜tool▁calls▁begin｜>"
_DEEPSEEK_CALL = re.compile(r"<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|$)", re.DOTALL)
_DEEPSEEK_V3 = re.compile(r"function<｜tool▁sep｜>([^\n]+)\n```json\n(.*?)\n?```\s*", re.DOTALL)
_DEEPSEEK_V31 = re.compile(r"([^<\n]+)<｜tool▁sep｜>(.*)", re.DOTALL)
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
    match form:
        case "hermes":
            return _tagged(text, _read)
        case "qwen3_coder":
            return _tagged(text, lambda call: _read_tagged(call, tools))
        case "json" | "llama3_json":
            return _parse_llama3(text)
        case "mistral":
            return _parse_mistral(text)
        case "deepseek":
            return _parse_deepseek(text)
        case "gpt_oss":
            return _parse_harmony(text)
        case _:
            assert_never(form)


def _tagged(text: str, read: Callable[[str], ToolCall]) -> ParsedReply:
    return ParsedReply(_TAGGED.sub("", text).strip(), tuple(map(read, _TAGGED.findall(text))))


def _parse_llama3(text: str) -> ParsedReply:
    """JSON objects, separated by semicolons, perhaps after the token for code."""
    stripped = text.strip().removeprefix("<|python_tag|>").strip()
    if not stripped.startswith("{") or not re.search(r'"name"\s*:', stripped):
        return ParsedReply(text, ())
    calls = []
    rest = stripped
    while rest:
        try:
            value, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            calls.append(_read(rest))
            break
        calls.append(_to_call(value, rest))
        rest = rest[end:].lstrip().removeprefix(";").lstrip()
    return ParsedReply("", tuple(calls))


def _parse_harmony(text: str) -> ParsedReply:
    """The calls and the content of a reply of gpt-oss; its channel `analysis`, the reasoning, is neither."""
    content, calls = [], []
    for role, channel, message in _HARMONY.findall(text):
        recipient = _RECIPIENT.search(f"{role} {channel}")
        if recipient is not None:
            calls.append(_with_arguments(recipient[1], message))
        elif not channel.startswith("analysis"):
            content.append(message)
    return ParsedReply("\n".join(content) if content or calls else text, tuple(calls))


def _parse_mistral(text: str) -> ParsedReply:
    """Text, and calls after [TOOL_CALLS]; a decoder that skips special tokens leaves the list of calls alone."""
    content, *parts = text.split("[TOOL_CALLS]")
    if not parts and re.match(r'\s*\[\s*\{\s*"name"', text):
        content, parts = "", [text]
    calls = [call for part in parts for call in _read_mistral(part.strip())]
    return ParsedReply(content.strip() if parts else text, tuple(calls))


def _read_mistral(text: str) -> list[ToolCall]:
    if text.startswith("["):
        try:
            return [_to_call(value, text) for value in json.loads(text)]
        except (ValueError, RecursionError) as error:
            return [_not_json(text, error)]
    found = _MISTRAL_CALL.fullmatch(text)
    if found is None:
        return [ToolCall("", {}, f"a call must be name[ARGS]{{...}}, not {_quoted(text)}")]
    return [_with_arguments(*found.groups())]


def _parse_deepseek(text: str) -> ParsedReply:
    content, begin, inside = text.partition(_DEEPSEEK_CALLS)
    if not begin:
        return ParsedReply(text, ())
    calls = []
    for call in _DEEPSEEK_CALL.findall(inside):
        found = _DEEPSEEK_V3.fullmatch(call) or _DEEPSEEK_V31.fullmatch(call)
        if found is None:
            calls.append(ToolCall("", {}, f"a call must have a name and JSON arguments, not {_quoted(call)}"))
        else:
            calls.append(_with_arguments(*found.groups()))
    return ParsedReply(content.strip(), tuple(calls))


def _read(text: str) -> ToolCall:
    try:
        return _to_call(json.loads(text), text)
    except (ValueError, RecursionError) as error:
        return _not_json(text, error)


def _not_json(text: str, error: Exception) -> ToolCall:
    return ToolCall("", {}, f"this is not JSON ({error}): {_quoted(text)}")


def _to_call(value: Any, text: str) -> ToolCall:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return ToolCall("", {}, f'a call must be {{"name": ..., "arguments": {{...}}}}, not {_quoted(text)}')
    return _with_arguments(name, value.get("arguments", value.get("parameters", {})))


def _with_arguments(name: str, arguments: Any) -> ToolCall:
    """The call of a tool with arguments as an object, or as its JSON text."""
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
