"""Data files on this machine or at any URL that fsspec supports."""

from __future__ import annotations

import posixpath
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strop.config.redact import redact_text
from strop.data.sources.rows import JsonLinesRows, ParquetRows, RowSource
from strop.errors import DataError, MissingExtraError
from strop.workers.atomic_write import atomic_path

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

FileFormat = Literal["parquet", "json", "csv"]

DATA_FILE_PATTERNS = (
    "*.parquet, *.jsonl or *.json (one object per line; also packed, as *.jsonl.gz or *.jsonl.zst), "
    "*.csv or *.tsv"
)
_SUFFIX = re.compile(
    r"\.(?:(?P<parquet>parquet)|(?P<csv>csv|tsv)|(?:jsonl|ndjson|json)(?P<packed>\.gz|\.zst|\.bz2)?)$"
)
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True, slots=True)
class DataPath:
    """A path as the user wrote it, without secrets, and as its file system uses it."""

    display_path: str
    filesystem: AbstractFileSystem
    path: str

    def child(self, name: str) -> DataPath:
        """An entry of this directory."""
        return DataPath(
            posixpath.join(self.display_path, name), self.filesystem, posixpath.join(self.path, name)
        )

    def put(self, file: Path) -> None:
        """Copy a file of this machine to this path. On this machine's own file systems a kill leaves the old file.

        Raises OSError where it cannot be written.
        """
        if self.filesystem.protocol[0] == "file":
            with atomic_path(Path(self.path)) as temporary:
                shutil.copyfile(file, temporary)
        else:
            self.filesystem.put_file(str(file), self.path)

    @property
    def parent(self) -> str:
        """Path or URL of the folder of this file."""
        parent = posixpath.dirname(self.path)
        is_local = "file" in self.filesystem.protocol
        return parent if is_local else str(self.filesystem.unstrip_protocol(parent))

    def kind(self) -> str | None:
        """`file`, `directory`, or None if nothing exists there. Raises `DataError` if access fails."""
        try:
            return str(self.filesystem.info(self.path)["type"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{self.display_path} cannot be opened: {_first_line(error)}.") from None


def resolve_path(path: str) -> DataPath:
    """Resolve a path or URL; `~` is the home folder.

    Raises `DataError` for an invalid URL, and `MissingExtraError` if its file system needs a package that
    is not installed.
    """
    from fsspec.core import url_to_fs

    shown = redact_text(path)
    try:
        files, inner = url_to_fs(path if "://" in path else str(Path(path).expanduser()))
    except ImportError as error:
        raise MissingExtraError(
            f"{shown} needs a package that is not installed: {error}. Install it with pip, or copy the data "
            "to this machine."
        ) from None
    except (ValueError, OSError, RuntimeError) as error:
        raise DataError(f"{shown} cannot be opened: {_first_line(error)}.") from None
    return DataPath(shown, files, inner)


def file_format(path: str) -> FileFormat | None:
    """The format of a data file, by its name or URL; None for other files."""
    match = _SUFFIX.search(_name(path))
    if match is None:
        return None
    return "parquet" if match["parquet"] else "csv" if match["csv"] else "json"


def read_file(place: DataPath) -> RowSource:
    """All rows of a file. Raises `DataError` if it is not a data file, cannot be read, or is empty."""
    match = _SUFFIX.search(_name(place.path))
    if match is None:
        raise DataError(
            f"{place.display_path} has no format that Strop reads. Data files are named {DATA_FILE_PATTERNS}."
        )
    try:
        if match["parquet"]:
            part = _read_parquet(place)
        elif match["csv"]:
            part = _read_csv(place, "\t" if match["csv"] == "tsv" else ",")
        else:
            part = _read_lines(place, match["packed"])
    except OSError as error:
        raise DataError(f"{place.display_path} cannot be read: {_first_line(error)}.") from None
    if not len(part):
        raise DataError(f"{place.display_path} is empty: it has no rows.")
    return part


def _read_parquet(place: DataPath) -> RowSource:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with place.filesystem.open(place.path, "rb") as file:
        try:
            return ParquetRows(place.display_path, pq.ParquetFile(file).read(), place.parent)
        except pa.ArrowException as error:
            raise DataError(
                f"{place.display_path} is not a complete Parquet file ({_first_line(error)}). Perhaps it was "
                "cut short "
                "when it was written or downloaded."
            ) from None


def _read_csv(place: DataPath, delimiter: str) -> RowSource:
    """Rows of a file with a header; every value is text, so that an answer such as 007 stays as it is."""
    import csv

    import pyarrow as pa

    with place.filesystem.open(place.path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            rows = []
            for row in reader:
                if row and len(row) != len(header):
                    raise DataError(
                        f"{place.display_path}, line {reader.line_num}: this row has {len(row)} values, and the header "
                        f"names {len(header)} columns. Quote values that contain {delimiter!r} or a line break."
                    )
                if row:
                    rows.append(row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(
                f"{place.display_path}, line {reader.line_num}: {error}. It should be UTF-8 text with a header, and "
                "double quotes around values that contain separators."
            ) from None
    if len(set(header)) < len(header):
        raise DataError(f"{place.display_path}: the header names a column twice: {', '.join(header)}.")
    columns = {name: [row[number] for row in rows] for number, name in enumerate(header)}
    return ParquetRows(place.display_path, pa.table(columns), place.parent)


def _read_lines(place: DataPath, packed: str | None) -> RowSource:
    import pyarrow as pa

    with place.filesystem.open(place.path, "rb") as file:
        text = file.read()
    if packed and text:
        text = pa.input_stream(pa.py_buffer(text), compression=_CODECS[packed]).read()
    return JsonLinesRows(place.display_path, text, place.parent)


def _name(path: str) -> str:
    """The path without the query and fragment of a URL."""
    return re.split(r"[?#]", path)[0] if "://" in path else path


def _first_line(error: Exception) -> str:
    return redact_text((str(error).splitlines() or [type(error).__name__])[0].rstrip("."))
