"""Conversion of a row's values to messages and tools, also of ShareGPT (`from` and `value`) and of ms-swift.

What the roles of ShareGPT and ms-swift (`tool_call`, `tool_response`) mean is that of LLaMA-Factory
(src/llamafactory/data/converter.py) and of ms-swift (swift/llm/dataset/preprocessor/core.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from strop.data.images.messages import IMAGE_PARTS
from strop.errors import DataError
from strop.types import Message
from strop.workers.json_text import parse_json

_CALLS = ("function_call", "tool_call")
"""Roles of messages that call tools, with the calls as the content's JSON text."""
_ROLES = {"human": "user", "gpt": "assistant", "tool_response": "tool", "function_response": "tool"}
"""Roles of other tools, next to `content` too."""
_SHAREGPT_ROLES = {
    **_ROLES,
    **dict.fromkeys(("user", "system", "assistant", "tool", "developer"), None),
    **dict.fromkeys(("chatgpt", "bing", "bard", "bot", "model"), "assistant"),
    **dict.fromkeys(("observation", "function"), "tool"),
}
"""Values of `from`; None for a role that keeps its name."""
Tools = tuple[Mapping[str, Any], ...]
"""JSON schemas of tools, as chat templates take them."""
_TEXTLESS_ROLES = ("system", "developer", "tool", "function")
"""Roles whose messages may say nothing: null is an empty content."""
_OTHER_CONTENTS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
"""Keys of an assistant's message that it may have in place of a content."""
_PYTHON_MESSAGES = re.compile(r"\s*(?:array\()?(?:\[\s*)?\{\s*'(?:role|content|from|value)':\s")
_PYTHON_PARTS = re.compile(r"\s*(?:array\()?\[\s*\{\s*'type': '(?:text|image|image_url)'")
_PYTHON_KEYS = (("'role':", "'content':"), ("'from':", "'value':"))
"""Beginnings of messages and of content parts as Python prints them, which is no JSON, and keys of messages."""
_LIST = '[{"role": "user", "content": "..."}]'


def standard_messages(messages: Sequence[Any], where: str) -> list[Any]:
    """Messages with `role` and `content`; those that are neither ShareGPT's nor ms-swift's are unchanged.

    Consecutive messages that call tools become one. Raises `DataError` for a speaker or a call that is unknown.
    """
    found: list[Any] = []
    last_calls = False
    for number, message in enumerate(messages, start=1):
        is_call = isinstance(message, Mapping) and message.get("role", message.get("from")) in _CALLS
        standard = _standard(message, f"{where}, message {number}", is_call=is_call)
        if (
            is_call
            and last_calls
            and standard.keys() == found[-1].keys() == {"role", "content", "tool_calls"}
        ):
            found[-1]["tool_calls"] += standard["tool_calls"]
        else:
            found.append(standard)
        last_calls = is_call
    return found


def _standard(message: Any, where: str, *, is_call: bool) -> Any:
    if not isinstance(message, Mapping):
        return message
    if "from" in message and "value" in message and message.get("role") is None:
        speaker = message["from"]
        if not is_call and (not isinstance(speaker, str) or speaker not in _SHAREGPT_ROLES):
            raise DataError(
                f"{where} is from {speaker!r}. A message with `from` and `value` is from human, gpt, system, "
                "function_call, observation or tool; write one of them, or `role` and `content`."
            )
        rest = {
            key: value for key, value in message.items() if key not in ("from", "value", "role", "content")
        }
        message = {"role": _SHAREGPT_ROLES.get(speaker) or speaker, "content": message["value"], **rest}
    elif isinstance(message.get("role"), str) and message["role"] in _ROLES:
        message = {**message, "role": _ROLES[message["role"]]}
    if not is_call:
        return message
    return {
        **message,
        "role": "assistant",
        "content": "",
        "tool_calls": _calls(message.get("content"), where),
    }


def _calls(content: Any, where: str) -> list[dict[str, Any]]:
    """The calls of a message whose content is a call, or a list of calls, or its JSON text."""
    try:
        value = parse_json(content) if isinstance(content, str) else content
        calls = [value] if isinstance(value, Mapping) else list(value)
        named = [(call["name"], call.get("arguments", {})) for call in calls]
        named = [(name, parse_json(args) if isinstance(args, str) else args) for name, args in named]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError(
            f"{where} calls a tool, and its content is {content!r:.80}. Write JSON such as "
            '{"name": "weather", "arguments": {"city": "Rome"}}.'
        ) from None
    return [{"type": "function", "function": {"name": name, "arguments": args}} for name, args in named]


def to_messages(value: Any, where: str, *, system: str | None = None) -> tuple[Message, ...]:
    """Convert messages, or their JSON text, to those that templates render; plain text becomes one user message.

    Parts of type text are joined to one text, and null is the empty content of a message that may have none.
    `system` is inserted before messages that have no system message. Raises `DataError` for a value that is neither
    text nor messages.
    """
    if isinstance(value, str):
        value = messages_in_text(value, where)
    if isinstance(value, str):
        messages = [{"role": "user", "content": value}]
    elif isinstance(value, Sequence) and value:
        standard = standard_messages(value, where)
        messages = [_message(message, f"{where}, message {i + 1}") for i, message in enumerate(standard)]
    else:
        raise DataError(
            f"{where}: the prompt is {_brief(value)}. A prompt must be plain text, or a list of messages "
            f"such as {_LIST}."
        )
    if system is not None and all(message["role"] != "system" for message in messages):
        messages.insert(0, {"role": "system", "content": system})
    return tuple(messages)


def messages_in_text(text: str, where: str) -> Any:
    """The messages of a column that holds them, or one of them, as JSON text; the unchanged text of any other column.

    Raises `DataError` for messages as Python prints them.
    """
    if text.lstrip()[:1] in ("[", "{"):
        try:
            value = parse_json(text)
        except ValueError:
            value = None
        messages = value if isinstance(value, list) else [value]
        if messages and all(map(_is_message, messages)):
            return messages
    is_python = _PYTHON_MESSAGES.match(text) and any(
        all(key in text for key in keys) for keys in _PYTHON_KEYS
    )
    if (is_python or _PYTHON_PARTS.match(text)) and text.rstrip()[-1] in "]})":
        raise DataError(_printed_by_python(text, where))
    return text


def _printed_by_python(text: str, where: str) -> str:
    return (
        f"{where}: the text is a list of messages or parts as Python prints it, {_brief(text)}, and no JSON. Write the "
        f"messages themselves or their JSON text (json.dumps), such as {_LIST}."
    )


def listed(value: Any) -> Any:
    """A value of a workflow as a list of messages; text is a message of the user, whatever it contains."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    return [value] if isinstance(value, Mapping) else value


def _is_message(value: Any) -> bool:
    """Whether a JSON value is a message, in OpenAI's or in ShareGPT's form."""
    if not isinstance(value, Mapping):
        return False
    if isinstance(value.get("role"), str):
        return "content" in value or "tool_calls" in value
    return isinstance(value.get("from"), str) and "value" in value


def _message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise DataError(_no_message(value, where))
    calls = value.get("tool_calls")
    if calls is not None and not (
        isinstance(calls, list | tuple) and all(isinstance(c, Mapping) for c in calls)
    ):
        raise DataError(f"{where} has the tool_calls {_brief(calls)}. Write a list of objects.")
    return {"role": value["role"], "content": _content(value, where)} | {
        key: [_without_null_keys(call) for call in item] if key == "tool_calls" else item
        for key, item in value.items()
        if key not in ("role", "content") and item is not None
    }


def _no_message(value: Any, where: str) -> str:
    return (
        f"{where} is {_brief(value)}. A message must have a role and a content, such as "
        '{"role": "user", "content": "..."}.'
    )


def _content(message: Mapping[str, Any], where: str) -> Any:
    """The content as text, as parts if there are images, or as the object that is a tool's result."""
    content, role = message.get("content"), message["role"]
    if isinstance(content, str):
        if role == "user" and _PYTHON_PARTS.match(content):
            raise DataError(_printed_by_python(content, where))
        return content
    if content is None or content == []:
        if any(message.get(key) for key in _OTHER_CONTENTS):
            return ""
        if "content" not in message:
            raise DataError(_no_message(message, where))
        if role not in _TEXTLESS_ROLES:
            raise DataError(
                f"{where}, of the role {role}, has {_brief(content)} as its content. Write its text; a message of "
                "the assistant may have tool_calls or reasoning_content instead. Remove a message without any."
            )
        return ""
    if isinstance(content, Sequence):
        parts = [_content_part(part, where) for part in content]
        if all(part["type"] == "text" for part in parts):
            return "".join(part["text"] for part in parts)
        return parts
    if role in ("tool", "function"):
        return content if isinstance(content, Mapping) else json.dumps(content, default=str)
    raise DataError(f"{where} has the content {_brief(content)}, which is neither text nor a list of parts.")


def _without_null_keys(call: Any) -> Any:
    """A tool call without the null keys of itself and of its function; the arguments keep theirs."""
    if not isinstance(call, Mapping):  # a function that is no object, which the template refuses
        return call
    return {
        key: _without_null_keys(item) if key == "function" else item
        for key, item in call.items()
        if item is not None
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
            value = parse_json(value)
        except ValueError as error:
            raise DataError(f"{where}: the tools are text that is not JSON ({error}).") from None
    if not isinstance(value, Sequence) or not all(isinstance(tool, Mapping) for tool in value):
        raise DataError(
            f"{where}: the tools are {_brief(value)}, not a list of objects such as "
            '{"type": "function", "function": {"name": ..., "parameters": {...}}}.'
        )
    return tuple(dict(tool) for tool in value)


def _brief(value: Any) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


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
