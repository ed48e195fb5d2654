"""Parsing of requests to the endpoint: JSON from clients, its fields, messages and tools; and the error responses."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strop.data.encoding.messages import Tools, to_messages, to_tools
from strop.errors import DataError
from strop.types import Message

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""OpenAI's error code for a prompt that exceeds the context length."""


class BadRequest(Exception):
    """A request that is answered with an error."""

    def __init__(self, message: str, *, status: int = 400, code: str | None = None) -> None:
        """`status` is the HTTP status, `code` OpenAI's error code."""
        super().__init__(message)
        self.status = status
        self.code = code


MAX_DEPTH = 64
"""Maximum nesting of objects and arrays."""
_QUOTE_CHARACTERS = 80


def parse_json(text: str | bytes, what: str) -> Any:
    """Parse JSON. Raises `BadRequest` for other text, lone surrogates, numbers that are not finite, and deep
    nesting; `what` names the text in its message."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"{what} is not JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep(what) from error
    _check_values(value, what)
    return value


def quote(value: Any) -> str:
    """A value for an error message, cut after some characters."""
    text = repr(value)
    return text if len(text) <= _QUOTE_CHARACTERS else f"{text[: _QUOTE_CHARACTERS - 3]}..."


def _check_values(value: Any, what: str) -> None:
    pending = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError as error:
                raise BadRequest(f"{what} has a lone surrogate, \\u{ord(item[error.start]):x}") from error
        elif isinstance(item, float) and not math.isfinite(item):
            raise BadRequest(f"{what} has the number {item}; numbers must be finite")
        elif isinstance(item, dict | list):
            if depth == MAX_DEPTH:
                raise _too_deep(what)
            inner = [*item, *item.values()] if isinstance(item, dict) else item
            pending.extend((each, depth + 1) for each in inner)


def _too_deep(what: str) -> BadRequest:
    return BadRequest(f"{what} is nested more than {MAX_DEPTH} levels deep")


MAX_CHOICES = 128
"""Maximum of `n`, OpenAI's."""
MAX_TOP_LOGPROBS = 20
"""Maximum number of most likely tokens, OpenAI's."""


def parse_flag(body: Mapping[str, Any], key: str) -> bool:
    """A flag; False if missing. Raises `BadRequest`, as all functions here."""
    value = body.get(key)
    if not isinstance(value, bool | None):
        raise BadRequest(f"{key} is {quote(value)}; it must be true or false")
    return bool(value)


def parse_count(
    body: Mapping[str, Any], key: str, *, minimum: int = 1, maximum: int | None = None
) -> int | None:
    """A whole number; None if missing."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise BadRequest(f"{key} is {quote(value)}; it must be a whole number, {minimum} or more")
    if maximum is not None and value > maximum:
        raise BadRequest(f"{key} is {quote(value)}; it must be at most {maximum}")
    return value


def parse_number(body: Mapping[str, Any], key: str, *, maximum: float) -> float | None:
    """A number from 0 to a maximum; None if missing."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= maximum:
        raise BadRequest(f"{key} is {quote(value)}; it must be a number from 0 to {maximum:g}")
    return value


def parse_stop(value: Any) -> tuple[str, ...]:
    """Stop texts: one, a list, or none."""
    stops = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise BadRequest(f"stop is {quote(value)}; it must be text, or a list of texts, none of them empty")
    return tuple(stops)


def parse_token_ids(body: Mapping[str, Any], key: str) -> list[int]:
    """Token ids; empty if missing."""
    value = body.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(type(token) is int and 0 <= token < 2**31 for token in value):
        raise BadRequest(f"{key} is {quote(value)}; it must be a list of token ids")
    return value


def parse_include_usage(body: Mapping[str, Any]) -> bool:
    """`stream_options.include_usage`."""
    options = body.get("stream_options")
    if not isinstance(options, dict | None):
        raise BadRequest(f"stream_options is {quote(options)}; it must be an object")
    return parse_flag(options or {}, "include_usage")


def check_keys(
    body: Any, accepted: frozenset[str], neutral: Mapping[str, tuple[Any, ...]]
) -> Mapping[str, Any]:
    """The body, if it is an object of accepted keys; `neutral` has those of unsupported features, with the values
    that do not request them."""
    if not isinstance(body, dict):
        raise BadRequest(f"the request is {quote(body)}; it must be a JSON object")
    for key, value in body.items():
        if key not in accepted and key not in neutral:
            raise BadRequest(f"{key[:80]} is not supported here; leave it out")
        if key in neutral and value not in neutral[key]:
            raise BadRequest(f"{key}: {quote(value)} is not supported here; leave it out")
    return body


def parse_model(body: Mapping[str, Any]) -> str:
    """Name of the model; empty if missing."""
    model = body.get("model", "")
    if not isinstance(model, str):
        raise BadRequest(f"model is {quote(model)}; it must be text")
    return model


def parse_messages(value: Any) -> tuple[Message, ...]:
    """Convert `messages`: contents become text or parts, the arguments of tool calls objects. Raises `BadRequest`."""
    if not isinstance(value, list) or not value:
        raise BadRequest(f"messages is {quote(value)}; it must be a list of one or more messages")
    converted = [_message(message, f"messages[{number}]") for number, message in enumerate(value)]
    try:
        return to_messages(converted, "messages")
    except DataError as error:
        raise BadRequest(str(error)) from error


def parse_tools(value: Any) -> Tools:
    """Convert `tools`. Raises `BadRequest`."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadRequest(f"tools is {quote(value)}; it must be a list of functions")
    for number, tool in enumerate(value):
        where = f"tools[{number}]"
        function = _require(tool, dict, where).get("function")
        _require(_require(function, dict, f"{where}.function").get("name"), str, f"{where}.function.name")
        _require(function.get("parameters") or {}, dict, f"{where}.function.parameters")
    return to_tools(value, "tools")


def _message(message: Any, where: str) -> dict[str, Any]:
    role = _require(_require(message, dict, where).get("role"), str, f"{where}.role")
    calls = _require(message.get("tool_calls") or [], list, f"{where}.tool_calls")
    for key in ("name", "tool_call_id"):
        _require(message.get(key) or "", str, f"{where}.{key}")
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    converted = {**message, "content": _content(content, f"{where}.content"), "tool_calls": None}
    if calls:
        converted["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)
        ]
    return converted


def _content(content: Any, where: str) -> str | list[dict[str, Any]]:
    """Text; or, if it has images, a list of parts."""
    if not isinstance(content, list):
        text: str = _require(content, str, where)
        return text
    parts = [_part(_require(part, dict, f"a part of {where}"), where) for part in content]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "text":
        return {"type": "text", "text": _require(part.get("text"), str, f"{where}, text of a part")}
    if kind != "image_url":
        raise BadRequest(
            f"{where} has a part of type {quote(kind)}; only text and image_url are supported here"
        )
    named = _require(part.get("image_url"), dict, f"{where}, image_url of a part")
    url = _require(named.get("url"), str, f"{where}, url of a part")
    if not url.startswith(("data:", "http://", "https://")):
        raise BadRequest(f"{where}: the url {quote(url)} must begin with data:image/, http:// or https://")
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = _require(_require(call, dict, where).get("function"), dict, f"{where}.function")
    _require(function.get("name"), str, f"{where}.function.name")
    arguments = function.get("arguments") or "{}"
    if isinstance(arguments, str):
        arguments = parse_json(arguments, f"{where}.function.arguments")
    _require(arguments, dict, f"{where}.function.arguments")
    return {**call, "function": {**function, "arguments": arguments}}


_KINDS: Mapping[type, str] = {dict: "an object", list: "a list", str: "text"}


def _require(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise BadRequest(f"{where} is {quote(value)}; it must be {_KINDS[kind]}")
    return value


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
