"""What a client asks of `/v1/chat/completions`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.data.chat import Tools, to_messages, to_tools
from strop.errors import DataError
from strop.types import Message

TOO_LONG = "context_length_exceeded"
"""The code of what does not fit, as OpenAI calls it."""
_NO_EFFECT = frozenset(
    (
        "user",
        "metadata",
        "store",
        "seed",
        "service_tier",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
    )
)
"""Accepted, for they say nothing of which tokens are drawn; `seed`, because the run derives its own."""
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "response_format": (None, {"type": "text"}),
    "tool_choice": (None, "auto", "none"),
    "modalities": (None, ["text"]),
}
"""What may be written, because it asks for nothing."""


class BadRequest(Exception):
    """A request that is not answered."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request that is understood."""

    model: str
    messages: tuple[Message, ...]
    """As chat templates take them: contents are text, a tool call's arguments an object."""
    tools: Tools = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False


def read_request(body: Any) -> ChatRequest:
    """Raises `BadRequest` for what is not understood, or asks for something that is not there."""
    if not isinstance(body, dict):
        raise BadRequest("the request is no JSON object")
    known = ChatRequest.__slots__
    taken = {*known, "max_completion_tokens", "stream_options", *_NO_EFFECT, *_ONLY}
    for key, value in body.items():
        if key not in taken or key == "include_usage":
            raise BadRequest(f"{key} is not supported here; leave it out")
        if key in _ONLY and value not in _ONLY[key]:
            raise BadRequest(f"{key}: {value!r} is not supported here; leave it out")
    options = body.get("stream_options") or {}
    stop = body.get("stop") or ()
    try:
        messages = to_messages([_message(m) for m in body.get("messages") or ()], "messages")
        tools = () if body.get("tool_choice") == "none" else to_tools(body.get("tools"), "tools")
    except DataError as error:
        raise BadRequest(str(error)) from error
    return ChatRequest(
        model=str(body.get("model", "")),
        messages=messages,
        tools=tools,
        max_tokens=_count(body, "max_completion_tokens") or _count(body, "max_tokens"),
        temperature=_number(body, "temperature"),
        top_p=_number(body, "top_p"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stream=bool(body.get("stream")),
        include_usage=bool(options.get("include_usage")),
    )


def _count(body: Mapping[str, Any], key: str) -> int | None:
    value = _number(body, key, least=1)
    return None if value is None else int(value)


def _number(body: Mapping[str, Any], key: str, least: float = 0) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
        raise BadRequest(f"{key} is {value!r}; it must be a number, {least:g} or more")
    return value


def _message(message: Any) -> Any:
    """One message as chat templates take it."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = message.get("tool_calls")
    read = {**message, "content": "" if content is None and calls else content}
    if calls:
        read["tool_calls"] = [_call(call) for call in calls]
    return read


def _call(call: Any) -> Any:
    try:
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        return {**call, "function": {**function, "arguments": parsed}}
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadRequest(f"a message's tool_calls cannot be read: {error}") from error
