"""Value types of foreign keys: which values a key accepts, and the description shown in errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any


@dataclass(frozen=True, slots=True)
class ValueType:
    """The values that a key accepts."""

    description: str
    """Noun phrase that completes "the key must be ..." in an error."""
    accepts: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether a value is a finite number: with NaN or infinity no key means anything."""
    return _is_integer(value) or (isinstance(value, float) and isfinite(value))


def _is_string_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _from_json(text: str) -> Any:
    """The value that a text is in JSON; None for other texts."""
    try:
        return json.loads(text)
    except ValueError:
        return None


ANY = ValueType("anything", lambda _: True)
BOOLEAN = ValueType("true or false", lambda value: isinstance(value, bool))
INTEGER = ValueType("an integer", _is_integer)
NUMBER = ValueType("a number", _is_number)
NUMBER_LIST = ValueType(
    "a list of numbers", lambda value: isinstance(value, list) and all(map(_is_number, value))
)
BETAS = ValueType(
    "a list of two numbers",
    lambda value: NUMBER_LIST.accepts(number_list(value)) and len(number_list(value)) == 2,
)
"""Type of AdamW's betas, a list that may be quoted, so that Hydra passes it as text."""
STRING = ValueType("a string", lambda value: isinstance(value, str))
STRING_OR_LIST = ValueType(
    "a string or a list of strings", lambda value: isinstance(value, str) or _is_string_list(value)
)
STRING_LIST = ValueType("a list of strings", lambda value: value == [] or _is_string_list(value))
MAPPING_LIST = ValueType("a list of mappings", lambda value: value in (None, [], {}))
"""Type of a list whose items have rows of their own. The list's own row sees only an empty list."""
MAPPING = ValueType("a mapping", lambda value: isinstance(value, dict))


def number_list(value: Any) -> Any:
    """The numbers of BETAS."""
    return _from_json(value) if isinstance(value, str) else value


_WORDS = {
    **dict.fromkeys(("yes", "y", "on", "true", "1"), True),
    **dict.fromkeys(("no", "n", "off", "false", "0"), False),
}


def typed_value(value: Any, value_type: ValueType) -> Any:
    """The value that OmegaConf converts `value` to where a key has this type; `value` itself where it accepts it, and
    where no conversion gives an accepted value."""
    if value_type.accepts(value) or not isinstance(value, str | int):
        return value
    candidates: list[Any] = [_WORDS[str(value).lower()]] if str(value).lower() in _WORDS else []
    if isinstance(value, str):
        for convert in (int, float):
            try:
                candidates.append(convert(value))
            except ValueError:
                continue
        candidates += [value.lower(), None] if value.lower() == "null" else [value.lower()]
    return next((each for each in candidates if value_type.accepts(each)), value)


def one_of(*values: Any) -> ValueType:
    """The type that accepts only the given values."""
    return ValueType(" or ".join(map(str, values)), lambda value: value in values)


def nullable(value_type: ValueType) -> ValueType:
    """The same type with null accepted too."""
    return replace(
        value_type,
        description=f"{value_type.description}, or null",
        accepts=lambda value: value is None or value_type.accepts(value),
    )


def value_type_of(default: Any) -> ValueType:
    """The type that a key's default implies; ANY where the default implies none."""
    for python_type, value_type in (
        (bool, BOOLEAN),
        (int, INTEGER),
        (float, NUMBER),
        (list, STRING_OR_LIST),
        (dict, MAPPING),
    ):
        if isinstance(default, python_type):
            return value_type
    return STRING if isinstance(default, str) and "${" not in default else ANY
