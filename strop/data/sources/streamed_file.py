"""Data files read from their beginning, without their end being known: bytes, lines of JSON, Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

from strop.data.sources.json_list import list_items, may_be_list
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


def iterate_lines(place: DataPath, packed: str | None) -> Iterator[tuple[str, bytes]]:
    """Place (`line 3`) and text of each line of JSON that is not blank, checked; or of each item of a file that is one
    list, which is read as a whole (`item 3`). Raises `DataError`, which names the line or item."""
    name = place.display_path
    with open_bytes(place, packed) as file:
        lines: Iterator[tuple[int, bytes]] = enumerate(file, start=1)
        number, line = next(((number, line) for number, line in lines if line.strip()), (0, b""))
        if may_be_list(line):
            text = line + file.read()
            items = list_items(name, text)
            for position, item in enumerate(items or (), start=1):
                check_object(item, f"{name} item {position}")
                yield f"item {position}", item
            lines = enumerate(BytesIO(b"" if items is not None else text), start=number)
        else:
            lines = chain([(number, line)], lines)
        for number, line in lines:
            if line.strip():
                check_object(line, f"{name} line {number}")
                yield f"line {number}", line


@contextmanager
def open_parquet(place: DataPath) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`. Raises `DataError` for a file that is not complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with place.filesystem.open(place.path, "rb") as file:
        try:
            yield pq.ParquetFile(file)
        except (UnicodeDecodeError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0].rstrip(".")
            raise DataError(
                f"{place.display_path} is not a complete Parquet file ({reason}). Perhaps it was cut short when it was "
                "written or downloaded."
            ) from None
