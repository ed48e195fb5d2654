"""JSON encoding of an experience's reward parts and images, decoded exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strop.errors import StoreError
from strop.types import ImageReference


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
    if type(value) is tuple:
        return {"$tuple": [_to_json(item) for item in value]}
    if type(value) is dict:
        return {"$dict": [[_to_json(key), _to_json(item)] for key, item in value.items()]}
    if type(value) is ImageReference:
        return {"$image": [value.digest, str(value.path), value.width, value.height]}
    raise StoreError(
        f"An experience holds a {type(value).__module__}.{type(value).__qualname__}, which a buffer cannot "
        "store: it stores reward parts, which are numbers by name, and references to images in the run's folder."
    )


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    match kind:
        case "$tuple":
            return tuple(_from_json(item) for item in content)
        case "$dict":
            return {_from_json(key): _from_json(item) for key, item in content}
        case "$image":
            digest, path, width, height = content
            return ImageReference(digest, Path(path), width, height)
    raise StoreError(
        f"A stored experience holds {kind!r}, which this version of Strop cannot read. Read it with "
        "the version that wrote it."
    )
