"""Single files, wherever fsspec reaches: on this machine or behind a URL."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strop.config.redact import redact_text
from strop.data.rows import ArrowTable, Lines, Part
from strop.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Format = Literal["parquet", "json"]

NAMES = "*.parquet, *.jsonl or *.json (one object per line; also packed, as *.jsonl.gz or *.jsonl.zst)"
_SUFFIX = re.compile(r"\.(?:(?P<parquet>parquet)|(?:jsonl|ndjson|json)(?P<packed>\.gz|\.zst|\.bz2)?)$")
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}


@dataclass(frozen=True, slots=True)
class Place:
    """A path as the user wrote it, without secrets, and as its file system knows it."""

    shown: str
    files: AbstractFileSystem
    path: str

    def inside(self, name: str) -> Place:
        """An entry of this directory."""
        return Place(posixpath.join(self.shown, name), self.files, posixpath.join(self.path, name))

    def kind(self) -> str | None:
        """`file`, `directory`, or None for nothing. Raises `DataError` where one may not look."""
        try:
            return str(self.files.info(self.path)["type"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{self.shown} cannot be opened: {_first_line(error)}.") from None


def place_of(path: str) -> Place:
    """Where a path or URL leads; `~` is the home folder.

    Raises `DataError` for an address that cannot be one, and `MissingExtraError` where its file system
    needs a package that is not installed.
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
    return Place(shown, files, inner)


def format_of(path: str) -> Format | None:
    """What a file is, by its name or URL; None for what is no data file."""
    match = _SUFFIX.search(_name(path))
    if match is None:
        return None
    return "parquet" if match["parquet"] else "json"


def read_file(place: Place) -> Part:
    """All rows of a file. Raises `DataError` where it is no data file, cannot be read, or is empty."""
    match = _SUFFIX.search(_name(place.path))
    if match is None:
        raise DataError(f"{place.shown} is of no kind that Strop reads. Data files are named {NAMES}.")
    try:
        part = _read_parquet(place) if match["parquet"] else _read_lines(place, match["packed"])
    except OSError as error:
        raise DataError(f"{place.shown} cannot be read: {_first_line(error)}.") from None
    if not len(part):
        raise DataError(f"{place.shown} is empty: it holds no rows.")
    return part


def _read_parquet(place: Place) -> Part:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with place.files.open(place.path, "rb") as file:
        try:
            return ArrowTable(place.shown, pq.ParquetFile(file).read())
        except pa.ArrowException as error:
            raise DataError(
                f"{place.shown} is not a whole Parquet file ({_first_line(error)}). Perhaps it was cut short "
                "when it was written or downloaded."
            ) from None


def _read_lines(place: Place, packed: str | None) -> Part:
    import pyarrow as pa

    with place.files.open(place.path, "rb") as file:
        text = file.read()
    if packed and text:
        text = pa.input_stream(pa.py_buffer(text), compression=_CODECS[packed]).read()
    return Lines(place.shown, text)


def _name(path: str) -> str:
    """A URL may go on after the file's name."""
    return re.split(r"[?#]", path)[0] if "://" in path else path


def _first_line(error: Exception) -> str:
    return redact_text((str(error).splitlines() or [type(error).__name__])[0].rstrip("."))
