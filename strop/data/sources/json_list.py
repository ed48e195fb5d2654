"""JSON files that are one list of rows, and no JSON Lines: `[{...}, ...]`, or such a list in `{"data": [...]}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from strop.errors import DataError
from strop.workers.json_text import parse_json

_KEY = "data"
"""Key of a list of rows; `datasets` has it as the example of its argument `field`."""


def may_be_list(first_line: bytes) -> bool:
    """Whether a file whose first line this is may be one list, so that it has to be read as a whole."""
    line = first_line.lstrip(b"\xef\xbb\xbf").strip()
    if line[:1] != b"{":
        return line[:1] == b"["
    value = _parsed(line)
    return not isinstance(value, Mapping) or value.keys() == {_KEY}


def list_items(name: str, text: bytes) -> list[bytes] | None:
    """The rows of a file that is one list, as JSON; None for JSON Lines, and for text that is no JSON.

    Raises `DataError` for one object over several lines, and for items that are no objects.
    """
    value = _parsed(text)
    if isinstance(value, Mapping):
        if value.keys() != {_KEY} or not isinstance(value[_KEY], list):
            if text.strip().count(b"\n") == 0:
                return None  # one row of JSON Lines
            raise DataError(
                f"{name} is one JSON object with the keys {', '.join(map(repr, value))}. Write one object per line, a "
                f'list of objects, or {{"{_KEY}": [...]}}.'
            )
        if any(isinstance(item, Mapping) and "role" in item for item in value[_KEY]):
            return None  # one row, whose column has messages
        value = value[_KEY]
    if not isinstance(value, list):
        return None
    wrong = next((number for number, item in enumerate(value, 1) if not isinstance(item, Mapping)), None)
    if wrong is not None:
        raise DataError(
            f"{name} item {wrong} is a JSON {type(value[wrong - 1]).__name__}, not an object. Each item of the list "
            'must be one object, such as {"question": "...", "answer": "..."}.'
        )
    return [json.dumps(item).encode() for item in value]


def _parsed(text: bytes) -> Any:
    """The JSON value; None for text that is none."""
    try:
        return parse_json(text)
    except ValueError:
        return None
