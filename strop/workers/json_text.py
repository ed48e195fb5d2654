"""JSON from files, peers and models, whose every fault is a `ValueError` with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strop.workers.files import open_regular

_DECODER = json.JSONDecoder()
_TOO_DEEP = "it nests too deeply"


def parse_json(text: str | bytes | bytearray) -> Any:
    """The value of a JSON text. Raises `ValueError` for any other text, and for one that nests too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_prefix(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and the position after it. Raises `ValueError` as `parse_json` does."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_object(text: str | bytes | bytearray) -> dict[str, Any]:
    """The object of a JSON text. Raises `ValueError`, also for another value."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is a JSON {'null' if value is None else type(value).__name__}, not an object")
    return value


def read_object(path: Path, *, max_bytes: int | None = None) -> dict[str, Any]:
    """The object of a JSON file of at most `max_bytes`. Raises `OSError` as `open_regular` does, and `ValueError`."""
    with open_regular(path) as file:
        content = file.read(-1 if max_bytes is None else max_bytes + 1)
    if max_bytes is not None and len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes:,} bytes")
    return parse_object(content)
