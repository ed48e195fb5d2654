"""Conversions of one value, for rows of one key and one field.

A key that has a meaning only together with others has a `KeyConverter` instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strop.compat.ledger.key_mapping import ValueConversion
from strop.compat.ledger.value_types import number_list


def named(names: Mapping[Any, Any]) -> ValueConversion:
    """Values by other names: the run's value for each of the key's; others are the same on both sides. Where several
    names have one value, the first is written."""
    back: dict[Any, Any] = {}
    for name, own in names.items():
        back.setdefault(own, name)
    return ValueConversion(lambda value: names.get(value, value), lambda value: back.get(value, value))


def scaled(factor: float) -> ValueConversion:
    """A number in another unit: the field is the key's value times `factor`; null stays null."""
    return ValueConversion(
        lambda value: None if value is None else value * factor,
        lambda value: None if value is None else value / factor,
    )


def null_means(meant: Any, *, is_written: bool = True) -> ValueConversion:
    """Null, or an empty value, means `meant`, which is written as it is, or as null unless `is_written`."""
    return ValueConversion(
        lambda value: value or meant, lambda value: None if value == meant and not is_written else value
    )


SWITCH = ValueConversion(lambda value: value, bool)
"""A switch of a field that has more values; null and false are written as false, the rest as true."""
UNCHANGED = ValueConversion(lambda value: value, lambda value: value)
"""The value itself, for a row whose other fields another row's converter sets."""
NEGATED = ValueConversion(lambda value: not value, lambda value: not value)
"""A switch with the opposite meaning."""
ZERO_IS_NULL = ValueConversion(lambda value: value or None, lambda value: value or 0)
"""A number that is 0 where the field is null."""
NAMES = ValueConversion(
    lambda value: [value] if isinstance(value, str) else value or [],
    lambda names: names[0] if len(names) == 1 else list(names) or None,
)
"""One name or a list of names, where the field is a list; null for none."""
NUMBERS = ValueConversion(number_list, list)
"""A list of numbers, or its text."""
