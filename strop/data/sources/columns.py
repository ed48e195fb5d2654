"""Access to the values of a row by column name or by a dotted path into nested values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strop.config.schema.data import ALPACA_PROMPTS, TasksetConfig
from strop.data.encoding.messages import messages_in_text
from strop.errors import DataError
from strop.workers.json_text import parse_json


class TableRow(dict[str, Any]):
    """A row of typed columns, such as Parquet's: its nested objects have the keys of all rows, as nulls."""


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


def has_column(row: Mapping[str, Any], path: str) -> bool:
    """Whether a row has the column of a path."""
    return path in row or path.split(".")[0] in row


def optional_value_at(row: Mapping[str, Any], path: str, where: str, section: TasksetConfig) -> Any:
    """`value_at`; None for one of the taskset's optional columns that the row lacks."""
    if path in section.optional_columns and not has_column(row, path):
        return None
    return value_at(row, path, where)


def messages_at(row: Mapping[str, Any], path: str, where: str) -> Any:
    """The value of a column of messages or text: one message is a list of it, messages that are JSON text are decoded,
    and the null keys that a table filled in below a message are removed. Raises `DataError` like `value_at` and
    `messages_in_text`."""
    value = value_at(row, path, where)
    if isinstance(value, str):
        return messages_in_text(value, where)
    if isinstance(value, Mapping):
        value = [value]
    if not isinstance(row, TableRow) or not isinstance(value, list):
        return value
    return [
        {key: without_nulls(item) for key, item in message.items()}
        if isinstance(message, Mapping)
        else message
        for message in value
    ]


def row_tools(row: Mapping[str, Any], where: str, section: TasksetConfig) -> Any:
    """The value of the tools column, without the null keys that a table filled in; None without a column."""
    if section.tools is None:
        return None
    value = optional_value_at(row, section.tools, where, section)
    return without_nulls(value) if isinstance(row, TableRow) else value


def without_nulls(value: Any) -> Any:
    """A nested value without null keys."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value]
    return value


def template_args(row: Mapping[str, Any], where: str, section: TasksetConfig) -> dict[str, Any]:
    """The row's own variables of the chat template. Raises `DataError` for a column that is missing, or no mapping."""
    values = _template_mapping(row, where, section)
    values |= {
        name: optional_value_at(row, column, where, section)
        for name, column in section.template_columns.items()
    }
    found = {name: value for name, value in values.items() if value is not None}
    return without_nulls(found) if isinstance(row, TableRow) else found


def _template_mapping(row: Mapping[str, Any], where: str, section: TasksetConfig) -> dict[str, Any]:
    column = section.template_args_column
    written = None if column is None else optional_value_at(row, column, where, section)
    if written is None:
        return {}
    try:
        value = parse_json(written) if isinstance(written, str) else written
    except ValueError:
        value = None
    if not isinstance(value, Mapping):
        raise DataError(
            f"{where}: the variables of the chat template, column {column!r}, are {written!r:.60}, not a mapping such "
            'as {"enable_thinking": false}.'
        )
    return dict(value)


def system_message(row: Mapping[str, Any], where: str, section: TasksetConfig) -> str | None:
    """The system message of a row: its own, else the taskset's, else None.

    Raises `DataError` for a column that is missing or is not text.
    """
    column = section.system_column
    if column is None and section.prompt in ALPACA_PROMPTS and row.get("system") not in (None, ""):
        column = "system"
    if column is None:
        return section.system
    text = value_at(row, column, where)
    if text is not None and not isinstance(text, str):
        raise DataError(f"{where}: the system message, column {column!r}, is {text!r} and not text.")
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
