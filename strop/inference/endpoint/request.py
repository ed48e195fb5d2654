"""Parsing of requests to `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.data.encoding.messages import Tools
from strop.inference.endpoint.errors import BadRequest
from strop.inference.endpoint.fields import (
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    check_keys,
    parse_count,
    parse_flag,
    parse_include_usage,
    parse_model,
    parse_number,
    parse_stop,
)
from strop.inference.endpoint.messages import parse_messages, parse_tools
from strop.types import Message

_IGNORED_KEYS = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "parallel_tool_calls",
        "safety_identifier",
        "prompt_cache_key",
    )
)
"""Accepted without effect: they do not affect sampling."""
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
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
    n: int = 1
    seed: int | None = None
    logprobs: bool = False
    """Whether the log-probs of sampled tokens are asked for."""
    top_logprobs: int | None = None
    """Number of most likely tokens to report for each; None if not given."""


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
        "n",
        "seed",
        "logprobs",
        "top_logprobs",
        *_IGNORED_KEYS,
    )
)


def parse_chat_request(body: Any) -> ChatRequest:
    """Parse a JSON body. Raises `BadRequest` for invalid values and unsupported features."""
    body = check_keys(body, _ACCEPTED_KEYS, _NEUTRAL_VALUES)
    logprobs = parse_flag(body, "logprobs")
    top_logprobs = parse_count(body, "top_logprobs", minimum=0, maximum=MAX_TOP_LOGPROBS)
    if top_logprobs and not logprobs:
        raise BadRequest(f"top_logprobs is {top_logprobs}; it needs logprobs: true")
    return ChatRequest(
        model=parse_model(body),
        messages=parse_messages(body.get("messages")),
        tools=() if body.get("tool_choice") == "none" else parse_tools(body.get("tools")),
        max_tokens=parse_count(body, "max_completion_tokens") or parse_count(body, "max_tokens"),
        temperature=parse_number(body, "temperature", maximum=2),
        top_p=parse_number(body, "top_p", maximum=1),
        stop=parse_stop(body.get("stop")),
        stream=parse_flag(body, "stream"),
        include_usage=parse_include_usage(body),
        n=parse_count(body, "n", maximum=MAX_CHOICES) or 1,
        seed=parse_count(body, "seed", minimum=0),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
    )
