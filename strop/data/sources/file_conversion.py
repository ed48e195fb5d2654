"""Conversion of large data files into Arrow files of the cache, once per version of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from strop.data.progress_bar import with_progress_bar
from strop.data.sources.cache import cache_key, find_entry, new_entry
from strop.data.sources.data_path import DataPath
from strop.data.sources.mapped_rows import (
    ROWS_PER_BATCH,
    ArrowFile,
    ArrowWriter,
    MappedJsonLines,
    MappedTable,
)
from strop.data.sources.rows import RowSource
from strop.data.sources.streamed_file import iterate_csv, iterate_lines, open_parquet

_LAYOUT = 1
"""Version of the entries: those of another version are not read."""
_FILE = "rows.arrow"


def convert_file(
    place: DataPath, kind: Literal["parquet", "csv", "json"], *, packed: str | None, delimiter: str
) -> RowSource:
    """The rows of a file, from the cache if this version of it was converted before.

    Raises `DataError` for a malformed file, and OSError for one that cannot be read.
    """
    version = place.version()
    key = cache_key("rows", _LAYOUT, kind, delimiter, version)
    found = None if version is None else find_entry(key)
    if found is not None:
        entry, _ = found
    else:
        with new_entry(key, temporary=version is None) as new:
            path = new.folder / _FILE
            if kind == "json":
                _convert_lines(place, packed, path)
            elif kind == "csv":
                _convert_csv(place, delimiter, path)
            else:
                _convert_parquet(place, path)
        entry = new.entry
    rows = MappedJsonLines if kind == "json" else MappedTable
    return rows(place.display_path, ArrowFile(entry / _FILE), place.parent, key)


def _convert_lines(place: DataPath, packed: str | None, path: Path) -> None:
    import pyarrow as pa

    schema = pa.schema([("line", pa.int64()), ("text", pa.binary())])
    lines = with_progress_bar(iterate_lines(place, packed), None, f"Reading {place.display_path}")
    _write_chunks(lines, schema, path)


def _convert_csv(place: DataPath, delimiter: str, path: Path) -> None:
    import pyarrow as pa

    rows = iterate_csv(place, delimiter)
    schema = pa.schema([(name, pa.string()) for name in next(rows)])
    _write_chunks(with_progress_bar(rows, None, f"Reading {place.display_path}"), schema, path)


def _write_chunks(rows: Iterable[Any], schema: Any, path: Path) -> None:
    writer = ArrowWriter(path, schema)
    iterator = iter(rows)
    while chunk := list(islice(iterator, ROWS_PER_BATCH)):
        writer.write_columns(list(zip(*chunk, strict=True)))
    writer.close()


def _convert_parquet(place: DataPath, path: Path) -> None:
    with open_parquet(place) as file:
        schema = _plain_schema(file.schema_arrow)
        writer = ArrowWriter(path, schema)
        batches: Iterator[Any] = file.iter_batches(ROWS_PER_BATCH)
        total = -(-file.metadata.num_rows // ROWS_PER_BATCH)
        for batch in with_progress_bar(batches, total, f"Reading {place.display_path}"):
            writer.write(batch.cast(schema))
        writer.close()


def _plain_schema(schema: Any) -> Any:
    """The schema with the values of dictionary-encoded columns, whose dictionaries may differ between batches."""
    import pyarrow as pa

    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(fields)
