"""Values of any shape as JSON text and back, exactly; for an experience's media."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from strop.errors import StoreError

_NUMBERS = "biufc"
"""The kinds of NumPy arrays that are plain bytes."""


def to_text(value: Any) -> str:
    """JSON, in which what JSON lacks stands as a mapping with one key that begins with `$`.

    Raises `StoreError` for objects of classes: they would have to be pickled, which is never done.
    """
    return json.dumps(_to_json(value))


def from_text(text: str) -> Any:
    """Exactly the value that `to_text` was given."""
    return _from_json(json.loads(text))


def _to_json(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_to_json(item) for item in value]
    if type(value) is tuple:
        return {"$tuple": [_to_json(item) for item in value]}
    if type(value) is dict:
        return {"$dict": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    if type(value) is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if type(value) is np.ndarray and value.dtype.kind in _NUMBERS:
        data = base64.b64encode(value.tobytes()).decode()
        return {"$array": [value.dtype.str, list(value.shape), data]}
    raise StoreError(
        f"An experience's media holds a {type(value).__module__}.{type(value).__qualname__}, which a buffer "
        "cannot store: it takes None, numbers, text, bytes, NumPy arrays of numbers, and lists, tuples and "
        "dicts of these. Let the workflow turn it into one of them (an image into its encoded bytes, say)."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    match kind:
        case "$tuple":
            return tuple(_from_json(item) for item in content)
        case "$dict":
            return {_from_json(key): _from_json(item) for key, item in content}
        case "$bytes":
            return base64.b64decode(content)
        case "$array":
            dtype, shape, data = content
            return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
    raise StoreError(
        f"A stored experience's media holds {kind!r}, which this version of Strop does not know."
    )
