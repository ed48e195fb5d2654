"""Data files read from their beginning, row by row, without their end being known: Parquet, JSON Lines, CSV, TSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from strop.data.sources.rows import check_object
from strop.errors import DataError

if TYPE_CHECKING:
    from strop.data.sources.data_path import DataPath

_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@contextmanager
def open_bytes(place: DataPath, packed: str | None) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed. Raises OSError if it cannot be read."""
    import pyarrow as pa

    with place.filesystem.open(place.path, "rb") as file:
        if not packed:
            yield file
            return
        with pa.CompressedInputStream(pa.PythonFile(file, "r"), _CODECS[packed]) as unpacked:
            yield io.BufferedReader(unpacked, 1 << 20)


def iterate_lines(place: DataPath, packed: str | None) -> Iterator[tuple[int, bytes]]:
    """Number and text of each line of JSON that is not blank, checked. Raises `DataError`, which names the line."""
    name = place.display_path
    with open_bytes(place, packed) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                check_object(line, f"{name} line {number}")
                yield number, line


def iterate_csv(place: DataPath, delimiter: str) -> Iterator[list[str]]:
    """The header, and then each row that is not blank. Every value is text, so that an answer such as 007 stays as
    it is. Raises `DataError`, which names the line."""
    with place.filesystem.open(place.path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
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


@contextmanager
def open_parquet(place: DataPath) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`. Raises `DataError` for a file that is not complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with place.filesystem.open(place.path, "rb") as file:
        try:
            yield pq.ParquetFile(file)
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise DataError(
                f"{place.display_path} is not a complete Parquet file ({reason}). Perhaps it was cut short when it was "
                "written or downloaded."
            ) from None
