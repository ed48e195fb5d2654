"""Data files on this machine or at any URL that fsspec supports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal

from strop.data.sources.data_path import DataPath, first_line
from strop.data.sources.file_conversion import convert_file
from strop.data.sources.rows import JsonLinesRows, ParquetRows, Row, RowSource
from strop.data.sources.streamed_file import iterate_csv, iterate_lines, open_bytes, open_parquet
from strop.errors import DataError

FileFormat = Literal["parquet", "json", "csv"]

DATA_FILE_PATTERNS = (
    "*.parquet, *.jsonl or *.json (one object per line; also packed, as *.jsonl.gz or *.jsonl.zst), "
    "*.csv or *.tsv"
)
_SUFFIX = re.compile(
    r"\.(?:(?P<parquet>parquet)|(?P<csv>csv|tsv)|(?:jsonl|ndjson|json)(?P<packed>\.gz|\.zst|\.bz2)?)$"
)
_STREAMED_ROWS = 256
"""Rows of a Parquet file that are read at once when it is streamed."""
MAPPED_FROM_BYTES = 16 << 20
"""Size from which a file is converted into the cache and memory-mapped; smaller files stay in memory."""


def file_format(path: str) -> FileFormat | None:
    """The format of a data file, by its name or URL; None for other files."""
    match = _SUFFIX.search(_name(path))
    if match is None:
        return None
    return "parquet" if match["parquet"] else "csv" if match["csv"] else "json"


def read_file(place: DataPath) -> RowSource:
    """All rows of a file. Raises `DataError` if it is not a data file, cannot be read, or is empty."""
    match = _match(place)
    try:
        size = place.size_bytes()
        delimiter = "\t" if match["csv"] == "tsv" else ","
        part: RowSource
        if size is None or size >= (MAPPED_FROM_BYTES // 8 if match["packed"] else MAPPED_FROM_BYTES):
            part = convert_file(
                place,
                "parquet" if match["parquet"] else "csv" if match["csv"] else "json",
                packed=match["packed"],
                delimiter=delimiter,
            )
        elif match["parquet"]:
            part = _read_parquet(place)
        elif match["csv"]:
            part = _read_csv(place, delimiter)
        else:
            part = _read_lines(place, match["packed"])
    except (OSError, EOFError) as error:
        raise DataError(f"{place.display_path} cannot be read: {first_line(error)}.") from None
    if not len(part):
        raise DataError(f"{place.display_path} is empty: it has no rows.")
    return part


def stream_file(place: DataPath) -> Iterator[tuple[str, Row]]:
    """Location and values of each row of a file, read from its beginning.

    Raises `DataError` if it is not a data file or is malformed, and OSError if it cannot be read.
    """
    match = _match(place)
    if match["parquet"]:
        with open_parquet(place) as file:
            rows = (row for batch in file.iter_batches(_STREAMED_ROWS) for row in batch.to_pylist())
            for number, row in enumerate(rows):
                yield f"{place.display_path} row {number} (counting from 0)", row
    elif match["csv"]:
        values = iterate_csv(place, "\t" if match["csv"] == "tsv" else ",")
        header = next(values)
        for number, row in enumerate(values):
            yield f"{place.display_path} row {number} (counting from 0)", dict(zip(header, row, strict=True))
    else:
        for number, line in iterate_lines(place, match["packed"]):
            yield f"{place.display_path} line {number}", json.loads(line)


def _match(place: DataPath) -> re.Match[str]:
    match = _SUFFIX.search(_name(place.path))
    if match is None:
        raise DataError(
            f"{place.display_path} has no format that Strop reads. Data files are named {DATA_FILE_PATTERNS}."
        )
    return match


def _read_parquet(place: DataPath) -> RowSource:
    with open_parquet(place) as file:
        return ParquetRows(place.display_path, file.read(), place.parent)


def _read_csv(place: DataPath, delimiter: str) -> RowSource:
    import pyarrow as pa

    rows = iterate_csv(place, delimiter)
    header = next(rows)
    columns = list(zip(*rows, strict=True)) or [() for _ in header]
    table = pa.table({name: list(values) for name, values in zip(header, columns, strict=True)})
    return ParquetRows(place.display_path, table, place.parent)


def _read_lines(place: DataPath, packed: str | None) -> RowSource:
    with open_bytes(place, packed) as file:
        return JsonLinesRows(place.display_path, file.read(), place.parent)


def _name(path: str) -> str:
    """The path without the query and fragment of a URL."""
    return re.split(r"[?#]", path)[0] if "://" in path else path
