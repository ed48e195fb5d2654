"""CSV and TSV: rows as text, and columns with the types that the `datasets` library gives them.

That library reads CSV with pandas, which decides on one type for a column: whole numbers, floats, booleans or text. An
empty value is null, and so are pandas' words for it, such as `NA` and `null`; a column of whole numbers with a null has
floats.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from strop.data.sources.data_path import open_bytes
from strop.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from strop.data.sources.data_path import DataPath

ROWS_PER_CHUNK = 10_000
"""Rows that are converted at once where a file is not converted whole; also those of `datasets`."""


def iterate_csv(place: DataPath, packed: str | None, delimiter: str) -> Iterator[list[str]]:
    """The header, and then each row that is not blank, as text. Raises `DataError`, which names the line."""
    with open_bytes(place, packed) as file:
        reader = csv.reader(
            io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), delimiter=delimiter, strict=True
        )
        try:
            header = next(reader, [])
            if len(set(header)) < len(header):
                raise DataError(
                    f"{place.display_path}: the header names a column twice: {', '.join(header)}."
                )
            yield header
            for row in reader:
                if row and len(row) != len(header):
                    raise DataError(
                        f"{place.display_path}, line {reader.line_num}: this row has {len(row)} values, and the header "
                        f"names {len(header)} columns. Quote values that contain {delimiter!r} or a line break."
                    )
                if row:
                    yield row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"{place.display_path}, line {reader.line_num}: {error}. It should be UTF-8 text with a header, and "
                "double quotes around values that contain separators."
            ) from None


def csv_tables(
    rows: Iterator[list[str]], texts: Collection[str], size: int | None, schema: pa.Schema | None = None
) -> Iterator[pa.Table]:
    """Tables of `size` rows each, or one of all rows, with the types of `schema`, or each with types of its own.

    `rows` begins with the header; `texts` are columns that stay text as it is written, whatever it looks like.
    """
    import pyarrow as pa

    header = next(rows)
    kept = {*texts} if schema is None else {*texts, *(f.name for f in schema if pa.types.is_string(f.type))}
    while chunk := list(islice(rows, size)):
        table = _typed(header, chunk, kept)
        yield table if schema is None else _cast(table, schema)


def csv_schema(rows: Iterator[list[str]], texts: Collection[str]) -> pa.Schema:
    """The types of all rows together, found by chunks; `rows` begins with the header."""
    import pyarrow as pa

    found: dict[str, pa.DataType | None] = {}
    with_nulls = set()
    for table in csv_tables(rows, texts, ROWS_PER_CHUNK):
        for name, column in zip(table.column_names, table.columns, strict=True):
            known = found.setdefault(name, None)
            if column.null_count < len(column):
                found[name] = column.type if known is None else _common(known, column.type)
            if column.null_count:
                with_nulls.add(name)
    floats = {
        name for name, kind in found.items() if kind is None or (kind == pa.int64() and name in with_nulls)
    }
    return pa.schema([(name, pa.float64() if name in floats else kind) for name, kind in found.items()])


def _typed(header: Sequence[str], rows: Iterable[Sequence[str]], texts: Collection[str]) -> pa.Table:
    """The table that `datasets` makes of rows, but for the columns `texts`."""
    import pandas as pd
    import pyarrow as pa

    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)

    def read(kept: Collection[str]) -> pd.DataFrame:
        text.seek(0)
        dtypes = {name: str for name in header if name in kept}
        return pd.read_csv(text, dtype=dtypes, low_memory=False, skip_blank_lines=False, index_col=False)

    frame = read(texts)
    objects = [name for name in frame if pd.api.types.is_object_dtype(frame[name])]
    # Whole numbers of more than 64 bits, which `datasets` cannot read, are text.
    large = {
        name
        for name in objects
        if any(isinstance(value, int) and not isinstance(value, bool) for value in frame[name])
    }
    frame = read({*texts, *large}) if large else frame
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    fields = [
        field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field
        for field in table.schema
    ]
    return table.cast(pa.schema(fields))


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    columns = [
        pa.chunked_array([pa.nulls(len(column), field.type)])
        if column.null_count == len(column)
        else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _common(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """The type that pandas gives a column with values of both types."""
    import pyarrow as pa

    if first == second:
        return first
    return pa.float64() if {first, second} == {pa.int64(), pa.float64()} else pa.string()
