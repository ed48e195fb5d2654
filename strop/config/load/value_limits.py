"""Limits on the values of a configuration: characters, integers, and the size of interpolations."""

from __future__ import annotations

import re
from math import inf
from typing import Any

from strop.config.load.config_tree import KeyPath, Locate, iter_values
from strop.config.schema.base import MAX_INTEGER
from strop.errors import ConfigError

_MAX_INTERPOLATED = 10_000
"""Maximum number of characters of a text with interpolations."""
_MAX_RESOLVED = 100_000
"""Maximum number of values and characters that the interpolations of one value give together."""
_MAX_NESTED = 5
"""Maximum number of interpolations inside each other, as in `${a.${b}}`."""
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_MAX_CHAIN = 100
"""Maximum number of values that lead from an interpolation to a text without one."""
_REFERENCE = re.compile(r"\$\{\s*(?:oc\.[a-z.]+:)?\s*(?P<dots>\.*)(?P<key>[^${},:]*)")


def check_values(values: Any, locate: Locate) -> None:
    """Raise ConfigError for text that no file or terminal can hold, and for integers beyond 64 bits."""
    for keys, value in iter_values(values):
        for text in (value, keys[-1] if keys else None):
            odd = _NOT_TEXT.search(text) if isinstance(text, str) else None
            if odd:
                raise ConfigError(f"{locate(keys)}: contains {_describe(odd[0])}; remove it.")
        if isinstance(value, int) and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
            raise ConfigError(f"{locate(keys)}: the integer does not fit into 64 bits; write a smaller one.")


def _describe(character: str) -> str:
    if character == "\0":
        return "a NUL character"
    return f"the character \\u{ord(character):04x}, half of a surrogate pair, which is not valid text"


def is_deeper(value: Any, limit: int) -> bool:
    """Return whether more than `limit` lists and mappings are inside each other."""
    level = [value]
    for _ in range(limit + 1):
        inside = (
            item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            for item in level
        )
        level = [item for items in inside for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def check_interpolations(values: dict[str, Any], locate: Locate) -> None:
    """Raise ConfigError for interpolations that refer to themselves, or that grow beyond the limits."""
    sizes: dict[KeyPath, float] = {}
    for keys, value in iter_values(values):
        if isinstance(value, str) and "${" in value:
            nested = max(text.count("${") for text in re.split(r"\}", value))
            if len(value) > _MAX_INTERPOLATED or nested > _MAX_NESTED:
                raise ConfigError(
                    f"{locate(keys)}: the interpolation is too long or too deeply nested; the limits are "
                    f"{_MAX_INTERPOLATED:,} characters and {_MAX_NESTED} levels."
                )
            size = _size(value, keys, values, sizes, ())
            if size == inf:
                raise ConfigError(f"{locate(keys)}: recursive interpolation: the value contains itself.")
            if size > _MAX_RESOLVED:
                raise ConfigError(
                    f"{locate(keys)}: its interpolations give more than {_MAX_RESOLVED:,} characters or values."
                )


def _size(
    value: Any, at: KeyPath, root: Any, sizes: dict[KeyPath, float], above: tuple[KeyPath, ...]
) -> float:
    """Return the number of characters and values of a value after resolution; infinite if it contains
    itself."""
    if at in sizes:
        return sizes[at]
    if at in above:
        return inf
    if len(above) > _MAX_CHAIN:
        return _MAX_RESOLVED + 1
    above = (*above, at)
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        size: float = 1 + sum(_size(item, (*at, str(key)), root, sizes, above) for key, item in items)
    else:
        size = len(value) + 1 if isinstance(value, str) else 1
        for named in references(value, at) if isinstance(value, str) else ():
            size += _size(value_at(root, named), named, root, sizes, above)
    sizes[at] = size if size == inf else min(size, _MAX_RESOLVED + 1)
    return sizes[at]


def references(text: str, at: KeyPath) -> list[KeyPath]:
    """Return the paths that the interpolations of a text name; `at` is the path of the text."""
    return [_named_path(match, at) for match in _REFERENCE.finditer(text)]


def _named_path(match: re.Match[str], at: KeyPath) -> KeyPath:
    """`${a.b}` names a key from the top, `${.b}` from the section of `at`, `${..b}` from the one above."""
    dots = len(match["dots"])
    key = re.sub(r"\[(\w+)\]", r".\1", match["key"]).strip(". ")
    return (*(at[: max(len(at) - dots, 0)] if dots else ()), *key.split("."))


def value_at(value: Any, keys: KeyPath) -> Any:
    """Return the value at a path; None if there is none."""
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value
