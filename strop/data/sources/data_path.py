"""Paths of data files on this machine or at any URL that fsspec supports, and reading of them as bytes and lines.

A JSON file may be one list of rows, and no JSON Lines: `[{...}, ...]`, or such a list in `{"data": [...]}`.
"""

from __future__ import annotations

import io
import json
import os
import posixpath
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from strop.config.redact import redact_text
from strop.data.sources.rows import check_object
from strop.errors import DataError, MissingExtraError, StropError
from strop.workers.files import atomic_path
from strop.workers.json_text import parse_json

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_VERSION_KEYS = (
    "ETag",
    "etag",
    "Content-MD5",
    "Digest",
    "Last-Modified",
    "LastModified",
    "last_modified",
    "updated",
    "mtime",
    "created",
    "md5Hash",
    "content_md5",
)
"""Facts of file systems that change with a file's contents."""
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

    @contextmanager
    def access(self) -> Iterator[None]:
        """A context in which an error of a remote store's library, which may have any class, is an OSError."""
        try:
            yield
        except (OSError, StropError):
            raise
        except Exception as error:  # each store's library has its own errors
            if "file" in self.filesystem.protocol:
                raise
            raise OSError(f"{type(error).__name__}: {first_line(error)}") from error

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

    def size_bytes(self) -> int | None:
        """Size of the file; None where its file system does not know it."""
        size = self.filesystem.info(self.path).get("size")
        return None if size is None else int(size)

    def version(self) -> list[Any] | None:
        """JSON values that change with the file's contents; None where its file system has none."""
        if "file" in self.filesystem.protocol:
            facts = Path(self.path).stat()
            return [os.path.realpath(self.path), facts.st_ino, facts.st_size, facts.st_mtime_ns]
        info = self.filesystem.info(self.path)
        known = {key: str(info[key]) for key in _VERSION_KEYS if info.get(key) is not None}
        if not known:
            return None
        return [str(self.filesystem.unstrip_protocol(self.path)), info.get("size"), known]

    def kind(self) -> str | None:
        """`file`, `directory`, or None if nothing exists there. Raises `DataError` if access fails."""
        try:
            with self.access():
                return str(self.filesystem.info(self.path)["type"])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{self.display_path} cannot be opened: {first_line(error)}.") from None


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
    except Exception as error:  # noqa: BLE001  (each store's library has its own errors)
        raise DataError(f"{shown} cannot be opened: {first_line(error)}.") from None
    return DataPath(shown, files, inner)


def first_line(error: Exception) -> str:
    """The first line of an error's text, without secrets and its full stop."""
    return redact_text((str(error).splitlines() or [type(error).__name__])[0].rstrip("."))


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


_KEY = "data"
"""Key of a list of rows; `datasets` has it as the example of its argument `field`."""


def may_be_list(first_line: bytes) -> bool:
    """Whether a file whose first line this is may be one list, so that it has to be read as a whole."""
    line = first_line.lstrip(b"\xef\xbb\xbf").strip()
    if line[:1] != b"{":
        return line[:1] == b"["
    value = _parsed(line)
    return not isinstance(value, Mapping) or value.keys() == {_KEY}


def list_items(name: str, text: bytes) -> list[bytes] | None:
    """The rows of a file that is one list, as JSON; None for JSON Lines, and for text that is no JSON.

    Raises `DataError` for one object over several lines, and for items that are no objects.
    """
    value = _parsed(text)
    if isinstance(value, Mapping):
        if value.keys() != {_KEY} or not isinstance(value[_KEY], list):
            if text.strip().count(b"\n") == 0:
                return None  # one row of JSON Lines
            raise DataError(
                f"{name} is one JSON object with the keys {', '.join(map(repr, value))}. Write one object per line, a "
                f'list of objects, or {{"{_KEY}": [...]}}.'
            )
        if any(isinstance(item, Mapping) and "role" in item for item in value[_KEY]):
            return None  # one row, whose column has messages
        value = value[_KEY]
    if not isinstance(value, list):
        return None
    wrong = next((number for number, item in enumerate(value, 1) if not isinstance(item, Mapping)), None)
    if wrong is not None:
        raise DataError(
            f"{name} item {wrong} is a JSON {type(value[wrong - 1]).__name__}, not an object. Each item of the list "
            'must be one object, such as {"question": "...", "answer": "..."}.'
        )
    return [json.dumps(item).encode() for item in value]


def _parsed(text: bytes) -> Any:
    """The JSON value; None for text that is none."""
    try:
        return parse_json(text)
    except ValueError:
        return None
