"""Conversion of large data files into Arrow files of the cache, once per version of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from strop.config.paths import DataFileName
from strop.data.progress_bar import with_progress_bar
from strop.data.sources.cache import cache_key, find_entry, new_entry
from strop.data.sources.csv_file import ROWS_PER_CHUNK, csv_schema, csv_tables, iterate_csv
from strop.data.sources.data_path import DataPath
from strop.data.sources.mapped_rows import (
    ROWS_PER_BATCH,
    ArrowFile,
    ArrowWriter,
    MappedJsonLines,
    MappedTable,
)
from strop.data.sources.rows import RowSource
from strop.data.sources.streamed_file import iterate_lines, open_parquet

_LAYOUT = 3
"""Version of the entries: those of another version are not read."""
_FILE = "rows.arrow"


def convert_file(place: DataPath, name: DataFileName, texts: frozenset[str]) -> RowSource:
    """The rows of a file, from the cache if this version of it was converted before.

    `texts` are columns that are text in CSV, whatever their values look like.

    Raises `DataError` for a malformed file, and OSError for one that cannot be read.
    """
    version = place.version()
    kind = name.format
    key = cache_key("rows", _LAYOUT, kind, name.delimiter, sorted(texts) if kind == "csv" else None, version)
    found = None if version is None else find_entry(key)
    if found is not None:
        entry, _ = found
    else:
        with new_entry(key, temporary=version is None) as new:
            path = new.folder / _FILE
            if kind == "json":
                _convert_lines(place, name.packed, path)
            elif kind == "csv":
                _convert_csv(place, name, texts, path)
            else:
                _convert_parquet(place, path)
        entry = new.entry
    rows = MappedJsonLines if kind == "json" else MappedTable
    return rows(place.display_path, ArrowFile(entry / _FILE), place.parent, key)


def _convert_lines(place: DataPath, packed: str | None, path: Path) -> None:
    import pyarrow as pa

    schema = pa.schema([("place", pa.string()), ("text", pa.binary())])
    lines = with_progress_bar(iterate_lines(place, packed), None, f"Reading {place.display_path}")
    _write_chunks(lines, schema, path)


def _convert_csv(place: DataPath, name: DataFileName, texts: frozenset[str], path: Path) -> None:
    """Read the file twice: for the types of its columns, and for its rows."""

    def rows(purpose: str) -> Iterator[list[str]]:
        read = iterate_csv(place, name.packed, name.delimiter)
        return with_progress_bar(read, None, f"{purpose} {place.display_path}")

    schema = csv_schema(rows("Looking through"), texts)
    writer = ArrowWriter(path, schema)
    for table in csv_tables(rows("Reading"), texts, ROWS_PER_CHUNK, schema):
        for batch in table.combine_chunks().to_batches():
            writer.write(batch)
    writer.close()


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
            batch.validate(full=True)
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
