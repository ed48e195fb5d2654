"""Values of a row by column, where a column may be a dotted path into nested values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strop.config.schema.data import Taskset
from strop.errors import DataError


def value_at(row: Mapping[str, Any], path: str, where: str) -> Any:
    """The value of `path` in a row: a column of just that name, or else a path from column to key to key.

    Raises `DataError`, which names the row (`where`) and what is there instead.
    """
    if path in row:
        return row[path]
    value: Any = row
    seen: list[str] = []
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise DataError(f"{where} has no {path!r}: {_what_is_there(value, key, '.'.join(seen))}")
        value = value[key]
        seen.append(key)
    return value


def system_of(row: Mapping[str, Any], where: str, section: Taskset) -> str | None:
    """The text of a row's system message: its own, or else that of all rows, or None.

    Raises `DataError` for a column that is missing, or is no text.
    """
    if section.system_column is None:
        return section.system
    text = value_at(row, section.system_column, where)
    if text is not None and not isinstance(text, str):
        raise DataError(
            f"{where}: the system message, column {section.system_column!r}, is {text!r}, no text."
        )
    return section.system if text is None else text


def _what_is_there(value: Any, key: str, seen: str) -> str:
    if not isinstance(value, Mapping):
        kind = "null" if value is None else f"a {type(value).__name__}"
        return f"{seen!r} is {kind} there, with nothing inside it."
    there = ", ".join(map(repr, value)) or "none"
    if not seen:
        return f"its columns are {there}. Name the right one in the run file's data section."
    return f"in {seen!r} there is no {key!r}, its keys are {there}."


def columns_of(paths: Sequence[str], names: Sequence[str]) -> list[str]:
    """Those of a table's columns that `value_at` looks into for these paths; all where one is missing."""
    columns = dict.fromkeys(path if path in names else path.split(".")[0] for path in paths)
    return list(columns if all(column in names for column in columns) else names)
