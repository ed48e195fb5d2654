"""Parsing of requests to `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.data.encoding.chat_template import Tools
from strop.inference.endpoint.errors import BadRequest
from strop.inference.endpoint.json_body import quote
from strop.inference.endpoint.messages import parse_messages, parse_tools
from strop.types import Message

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


_ACCEPTED_KEYS = frozenset(
    (
        "model",
        "messages",
        "tools",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "stop",
        "stream",
        "stream_options",
        *_IGNORED_KEYS,
        *_NEUTRAL_VALUES,
    )
)


def parse_chat_request(body: Any) -> ChatRequest:
    """Parse a JSON body. Raises `BadRequest` for invalid values and unsupported features."""
    if not isinstance(body, dict):
        raise BadRequest(f"the request is {quote(body)}; it must be a JSON object")
    for key, value in body.items():
        if key not in _ACCEPTED_KEYS:
            raise BadRequest(f"{key[:80]} is not supported here; leave it out")
        if key in _NEUTRAL_VALUES and value not in _NEUTRAL_VALUES[key]:
            raise BadRequest(f"{key}: {quote(value)} is not supported here; leave it out")
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        raise BadRequest(f"stream_options is {quote(options)}; it must be an object")
    model = body.get("model", "")
    if not isinstance(model, str):
        raise BadRequest(f"model is {quote(model)}; it must be text")
    return ChatRequest(
        model=model,
        messages=parse_messages(body.get("messages")),
        tools=() if body.get("tool_choice") == "none" else parse_tools(body.get("tools")),
        max_tokens=_count(body, "max_completion_tokens") or _count(body, "max_tokens"),
        temperature=_number(body, "temperature", maximum=2),
        top_p=_number(body, "top_p", maximum=1),
        stop=_stop(body.get("stop")),
        stream=_flag(body, "stream"),
        include_usage=_flag(options or {}, "include_usage"),
    )


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise BadRequest(f"stop is {quote(value)}; it must be text, or a list of texts, none of them empty")
    return tuple(stops)


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if not isinstance(value, bool | None):
        raise BadRequest(f"{key} is {quote(value)}; it must be true or false")
    return bool(value)


def _count(body: Mapping[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadRequest(f"{key} is {quote(value)}; it must be a whole number, 1 or more")
    return value


def _number(body: Mapping[str, Any], key: str, *, maximum: float) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= maximum:
        raise BadRequest(f"{key} is {quote(value)}; it must be a number from 0 to {maximum:g}")
    return value
