"""Parsing of requests to `/v1/chat/completions`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.data.encoding.chat_template import Tools, to_messages, to_tools
from strop.errors import DataError
from strop.types import Message

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""OpenAI's error code for a prompt that exceeds the context length."""
_IGNORED_KEYS = frozenset(
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
"""Accepted without effect: they do not affect sampling, except `seed`, which the run derives itself."""
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
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
"""Keys of unsupported features, with the values that do not request them."""


class BadRequest(Exception):
    """A request that is answered with an error."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        """`status` is the HTTP status, `code` OpenAI's error code."""
        super().__init__(message)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A valid request."""

    model: str
    messages: tuple[Message, ...]
    """Messages for a chat template: contents are text, the arguments of tool calls are objects."""
    tools: Tools = ()
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False


def parse_chat_request(body: Any) -> ChatRequest:
    """Parse a JSON body. Raises `BadRequest` for invalid values and unsupported features."""
    if not isinstance(body, dict):
        raise BadRequest("the request must be a JSON object")
    accepted = {
        *ChatRequest.__slots__,
        "max_completion_tokens",
        "stream_options",
        *_IGNORED_KEYS,
        *_NEUTRAL_VALUES,
    }
    for key, value in body.items():
        if key not in accepted or key == "include_usage":
            raise BadRequest(f"{key} is not supported here; leave it out")
        if key in _NEUTRAL_VALUES and value not in _NEUTRAL_VALUES[key]:
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
    value = _number(body, key, minimum=1)
    return None if value is None else int(value)


def _number(body: Mapping[str, Any], key: str, minimum: float = 0) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < minimum:
        raise BadRequest(f"{key} is {value!r}; it must be a number, {minimum:g} or more")
    return value


def _message(message: Any) -> Any:
    """One message in the form that chat templates accept."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = message.get("tool_calls")
    converted = {**message, "content": "" if content is None and calls else content}
    if calls:
        converted["tool_calls"] = [_tool_call(call) for call in calls]
    return converted


def _tool_call(call: Any) -> Any:
    try:
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        return {**call, "function": {**function, "arguments": parsed}}
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BadRequest(f"the tool_calls of a message are invalid: {error}") from error
