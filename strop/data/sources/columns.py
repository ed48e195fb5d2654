"""Access to the values of a row by column name or by a dotted path into nested values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strop.config.schema.data import TasksetConfig
from strop.errors import DataError


def value_at(row: Mapping[str, Any], path: str, where: str) -> Any:
    """The value of `path` in a row: of the column with exactly that name, or of a dotted path of nested keys.

    Raises `DataError`, which names the row (`where`) and the columns or keys that it has.
    """
    if path in row:
        return row[path]
    value: Any = row
    seen: list[str] = []
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise DataError(f"{where} has no {path!r}: {_describe_existing(value, key, '.'.join(seen))}")
        value = value[key]
        seen.append(key)
    return value


def optional_value_at(row: Mapping[str, Any], path: str, where: str, section: TasksetConfig) -> Any:
    """`value_at`; None for one of the taskset's optional columns that the row lacks."""
    if path in section.optional_columns and path not in row and path.split(".")[0] not in row:
        return None
    return value_at(row, path, where)


def row_tools(row: Mapping[str, Any], where: str, section: TasksetConfig) -> Any:
    """The value of the tools column; None without one."""
    return None if section.tools is None else optional_value_at(row, section.tools, where, section)


def template_args(row: Mapping[str, Any], where: str, section: TasksetConfig) -> dict[str, Any]:
    """The row's own variables of the chat template. Raises `DataError` for a column that is missing."""
    values = {
        name: optional_value_at(row, column, where, section)
        for name, column in section.template_columns.items()
    }
    return {name: value for name, value in values.items() if value is not None}


def system_message(row: Mapping[str, Any], where: str, section: TasksetConfig) -> str | None:
    """The system message of a row: its own, else the taskset's, else None.

    Raises `DataError` for a column that is missing or is not text.
    """
    if section.system_column is None:
        return section.system
    text = value_at(row, section.system_column, where)
    if text is not None and not isinstance(text, str):
        raise DataError(
            f"{where}: the system message, column {section.system_column!r}, is {text!r} and not text."
        )
    return section.system if text is None else text


def _describe_existing(value: Any, key: str, seen: str) -> str:
    if not isinstance(value, Mapping):
        kind = "null" if value is None else f"a {type(value).__name__}"
        return f"{seen!r} is {kind} in this row, without keys."
    names = ", ".join(map(repr, value)) or "none"
    if not seen:
        return f"its columns are {names}. Write one of them in the run file's data section."
    return f"{seen!r} has no {key!r}, its keys are {names}."


def top_level_columns(paths: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns of a table that `value_at` reads for these paths; all columns if one is missing."""
    columns = dict.fromkeys(path if path in names else path.split(".")[0] for path in paths)
    return list(columns if all(column in names for column in columns) else names)
