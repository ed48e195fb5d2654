"""JSON from clients: parsing that rejects text which later steps could not process."""

from __future__ import annotations

import json
import math
from typing import Any

from strop.inference.endpoint.errors import BadRequest

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
