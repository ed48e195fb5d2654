"""JSON encoding of nested Python values, NumPy arrays and bytes, decoded exactly; for experiences' media."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from strop.errors import StoreError

_NUMERIC_KINDS = "biufc"
"""Kinds of NumPy dtypes whose arrays can be stored as bytes."""


def dumps(value: Any) -> str:
    """Encode a value as JSON; a type that JSON lacks becomes an object with one key that begins with `$`.

    Raises `StoreError` for instances of other classes, because Strop never pickles experiences.
    """
    return json.dumps(_to_json(value))


def loads(text: str) -> Any:
    """Decode exactly the value that `dumps` encoded."""
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
    if type(value) is np.ndarray and value.dtype.kind in _NUMERIC_KINDS:
        data = base64.b64encode(value.tobytes()).decode()
        return {"$array": [value.dtype.str, list(value.shape), data]}
    raise StoreError(
        f"An experience's media holds a {type(value).__module__}.{type(value).__qualname__}, which a buffer "
        "cannot store: it stores None, numbers, text, bytes, NumPy arrays of numbers, and lists, tuples and "
        "dicts of these. Convert the value in the workflow, such as an image into its encoded bytes."
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
        f"A stored experience's media holds {kind!r}, which this version of Strop cannot read. Read it with "
        "the version that wrote it."
    )
