"""Columns of Arrow tables as operators read and write them: dotted paths, texts of prompts, new columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strop.data.images.messages import content_text
from strop.errors import DataError
from strop.pipelines.tasks.protocol import RowError


def column(table: pa.Table, path: str) -> pa.ChunkedArray:
    """The column of exactly this name, or of a dotted path into nested values. Raises DataError if there is none."""
    if path in table.column_names:
        return table.column(path)
    first, *rest = path.split(".")
    if first not in table.column_names:
        raise DataError(missing_column(path, table.column_names))
    values = table.column(first)
    for name in rest:
        kind = values.type
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise DataError(f"there is no column {path!r}: {first!r} holds {kind}, without a key {name!r}")
        values = pc.struct_field(values, name)
    return values


def missing_column(path: str, names: Sequence[str]) -> str:
    """Message for a column that no row has."""
    return f"there is no column {path!r}; the rows have {', '.join(map(repr, names)) or 'no columns'}"


def texts(table: pa.Table, path: str) -> list[str]:
    """The text of each row: a string, or the joined contents of a list of messages.

    Raises RowError for a row whose value is null or no text.
    """
    values = column(table, path)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        if values.null_count:
            raise RowError(pc.index(pc.is_null(values), True).as_py(), f"has no {path!r} (it is null)")
        return values.to_pylist()
    return [_text(value, path, row) for row, value in enumerate(values.to_pylist())]


def _text(value: Any, path: str, row: int) -> str:
    if value is None:
        raise RowError(row, f"has no {path!r} (it is null)")
    if isinstance(value, str):
        return value
    if (messages := _messages_text(value)) is not None:
        return messages
    raise RowError(
        row, f"has no text in {path!r}: it is {str(value)[:80]!r}; write a column of texts or messages"
    )


def as_text(value: Any) -> str:
    """A value as text: a string as it is, messages as their contents, other values as JSON."""
    if isinstance(value, str):
        return value
    if (messages := _messages_text(value)) is not None:
        return messages
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _messages_text(value: Any) -> str | None:
    """The joined contents of a list of messages; None for other values."""
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(each, dict) and "content" in each for each in value):
        return None
    return "\n".join(str(content_text(message["content"] or "")) for message in value)


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with a column, in the place of one of the same name."""
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    index = table.schema.get_field_index(name)
    return table.append_column(name, array) if index < 0 else table.set_column(index, name, array)


def to_table(rows: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> pa.Table:
    """A table of rows, which may have different keys; `names` are columns that it has in any case.

    Raises DataError for a column whose values have no common type.
    """
    found = dict.fromkeys([*names, *(key for row in rows for key in row)])
    arrays = []
    for name in found:
        values = [row.get(name) for row in rows]
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise DataError(
                f"the column {name!r} has values of different types, which no column of a table can have: "
                f"{str(error).splitlines()[0]}. Write one type, such as text, in all rows"
            ) from None
    return pa.table(dict(zip(found, arrays, strict=True)))
