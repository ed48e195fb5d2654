"""Optional fields of a JSON request, checked and converted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.inference.endpoint.errors import BadRequest
from strop.inference.endpoint.json_body import quote

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
