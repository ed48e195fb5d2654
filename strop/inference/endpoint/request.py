"""Parsing of requests to `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.data.encoding.messages import Tools
from strop.inference.endpoint.errors import BadRequest
from strop.inference.endpoint.fields import (
    check_keys,
    parse_count,
    parse_flag,
    parse_model,
    parse_number,
    parse_stop,
)
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
    "skip_special_tokens": (None, False),
}
"""Keys of unsupported features, with the values that do not request them."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A valid request."""

    model: str
    messages: tuple[Message, ...]
    """Messages for a chat template: contents are text or lists of parts, the arguments of tool calls are objects."""
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
    )
)


def parse_chat_request(body: Any) -> ChatRequest:
    """Parse a JSON body. Raises `BadRequest` for invalid values and unsupported features."""
    body = check_keys(body, _ACCEPTED_KEYS, _NEUTRAL_VALUES)
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        raise BadRequest(f"stream_options is {quote(options)}; it must be an object")
    return ChatRequest(
        model=parse_model(body),
        messages=parse_messages(body.get("messages")),
        tools=() if body.get("tool_choice") == "none" else parse_tools(body.get("tools")),
        max_tokens=parse_count(body, "max_completion_tokens") or parse_count(body, "max_tokens"),
        temperature=parse_number(body, "temperature", maximum=2),
        top_p=parse_number(body, "top_p", maximum=1),
        stop=parse_stop(body.get("stop")),
        stream=parse_flag(body, "stream"),
        include_usage=parse_flag(options or {}, "include_usage"),
    )
