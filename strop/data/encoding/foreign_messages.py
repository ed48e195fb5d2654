"""Messages in the forms of ShareGPT (`from` and `value`) and ms-swift (roles `tool_call` and `tool_response`).

What they mean is that of LLaMA-Factory (src/llamafactory/data/converter.py) and of ms-swift
(swift/llm/dataset/preprocessor/core.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from strop.errors import DataError

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
        value = json.loads(content) if isinstance(content, str) else content
        calls = [value] if isinstance(value, Mapping) else list(value)
        named = [(call["name"], call.get("arguments", {})) for call in calls]
        named = [(name, json.loads(args) if isinstance(args, str) else args) for name, args in named]
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise DataError(
            f"{where} calls a tool, and its content is {content!r:.80}. Write JSON such as "
            '{"name": "weather", "arguments": {"city": "Rome"}}.'
        ) from None
    return [{"type": "function", "function": {"name": name, "arguments": args}} for name, args in named]
