"""Rows from Parquet or JSON Lines (files, directories, URLs), from `datasets` folders, and from the hub."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from strop.config.redact import redact_text
from strop.config.schema.data import Taskset
from strop.data.hub import read_hub, read_saved
from strop.data.rows import ArrowTable, Lines, Part, Rows
from strop.data.splits import files_of_split
from strop.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PACKED = {"": None, ".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_SUFFIX = re.compile(r"\.(?P<format>parquet|jsonl|ndjson|json)(?P<packed>|\.gz|\.zst|\.bz2)$")
_NAMES = "*.parquet, *.jsonl or *.json (one object per line; also packed, as *.jsonl.gz or *.jsonl.zst)"
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
_SAVED = ("dataset_dict.json", "state.json")
_METADATA = {"config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}


def read_rows(taskset: Taskset) -> Rows:
    """Open everything that `path` names, and check that every file can be read.

    Raises `DataError` for what is missing, empty or malformed, and `MissingExtraError` for a URL whose
    file system needs a package that is not installed.
    """
    paths = (taskset.path,) if isinstance(taskset.path, str) else taskset.path
    if not paths:
        raise DataError("A taskset's `path` is an empty list. Name at least one file, directory or dataset.")
    parts = [part for path in paths for part in _read_path(path, taskset)]
    return Rows(parts, taskset.limit_tasks)


@dataclass(frozen=True, slots=True)
class _Place:
    """A path as the user wrote it, without secrets, and as its file system knows it."""

    shown: str
    files: AbstractFileSystem
    path: str

    def inside(self, name: str) -> _Place:
        return _Place(posixpath.join(self.shown, name), self.files, posixpath.join(self.path, name))


def _read_path(path: str, taskset: Taskset) -> list[Part]:
    place = _place(path)
    match _kind(place):
        case "file":
            _refuse_choices(place, taskset)
            return [_read_file(place)]
        case "directory" if any(place.files.exists(place.inside(name).path) for name in _SAVED):
            url = place.files.unstrip_protocol(place.path)
            return [read_saved(url, place.shown, taskset.split, taskset.subset)]
        case "directory":
            return _read_directory(place, taskset)
    if _HUB_NAME.match(path) and not _SUFFIX.search(path):
        return [read_hub(path, taskset.split, taskset.subset)]
    raise DataError(f"There is no file or directory {place.shown}{_nearest_folder(place)}.")


def _place(path: str) -> _Place:
    from fsspec.core import url_to_fs

    shown = redact_text(path)
    try:
        files, inner = url_to_fs(str(Path(path).expanduser()) if "://" not in path else path)
    except ImportError as error:
        raise MissingExtraError(f"{shown} cannot be opened: {error}, with `pip install`.") from None
    except (ValueError, OSError) as error:
        raise DataError(f"{shown} cannot be opened: {_first_line(error)}.") from None
    return _Place(shown, files, inner)


def _kind(place: _Place) -> Any:
    try:
        return place.files.info(place.path)["type"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{place.shown} cannot be opened: {_first_line(error)}.") from None


def _refuse_choices(place: _Place, taskset: Taskset) -> None:
    for key in ("split", "subset"):
        value = getattr(taskset, key)
        if value is not None:
            raise DataError(
                f"{place.shown} is one file, which has no {key}s. Leave out `{key}: {value}`, or give the "
                "directory or dataset that has them."
            )


def _read_directory(place: _Place, taskset: Taskset) -> list[Part]:
    if taskset.subset is not None:
        raise DataError(
            f"{place.shown} is a directory, where `subset: {taskset.subset}` means nothing. Give the "
            "directory of that subset as the path."
        )
    entries = {
        posixpath.basename(e["name"].rstrip("/")): e["type"] for e in place.files.ls(place.path, detail=True)
    }
    names = [
        name
        for name, kind in entries.items()
        if kind == "file" and _SUFFIX.search(name) and name not in _METADATA and name[0] not in "._"
    ]
    if not names:
        folders = sorted(
            name for name, kind in entries.items() if kind == "directory" and name[0] not in "._"
        )
        inside = f" If they are further in, give that directory: {', '.join(folders)}." if folders else ""
        raise DataError(f"The directory {place.shown} holds no data files: none is named {_NAMES}.{inside}")
    names = files_of_split(names, taskset.split, place.shown)
    if len({_format(name) for name in names}) > 1:
        raise DataError(
            f"The directory {place.shown} holds both Parquet and JSON files, perhaps the same rows twice: "
            f"{', '.join(names)}. Name the files to use as a list."
        )
    return [_read_file(place.inside(name)) for name in names]


def _format(name: str) -> str:
    match = _SUFFIX.search(name)
    return "" if match is None else "parquet" if match["format"] == "parquet" else "json"


def _read_file(place: _Place) -> Part:
    match = _SUFFIX.search(urlsplit(place.path).path if "://" in place.path else place.path)
    if match is None or (match["format"] == "parquet" and match["packed"]):
        raise DataError(f"{place.shown} is of no kind that Strop reads. Data files are named {_NAMES}.")
    try:
        parquet = match["format"] == "parquet"
        part = _read_parquet(place) if parquet else _read_lines(place, _PACKED[match["packed"]])
    except OSError as error:
        raise DataError(f"{place.shown} cannot be read: {_first_line(error)}.") from None
    if not len(part):
        raise DataError(f"{place.shown} is empty: it holds no rows.")
    return part


def _read_parquet(place: _Place) -> Part:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with place.files.open(place.path, "rb") as file:
        try:
            return ArrowTable(place.shown, pq.ParquetFile(file).read())
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{place.shown} is not a whole Parquet file ({_first_line(error)}). Perhaps it was cut short "
                "when it was written or downloaded."
            ) from None


def _read_lines(place: _Place, packed: str | None) -> Part:
    import pyarrow as pa

    with place.files.open(place.path, "rb") as file:
        text = file.read()
    if packed and text:
        text = pa.input_stream(pa.py_buffer(text), compression=packed).read()
    return Lines(place.shown, text)


def _nearest_folder(place: _Place) -> str:
    """Where a path goes wrong: `, nor a directory data/gsm`."""
    if "://" in place.shown:
        return " (or it cannot be reached)"
    missing = Path(place.path)
    while not missing.parent.exists():
        missing = missing.parent
    return "" if missing == Path(place.path) else f": there is no {missing}"


def _first_line(error: Exception) -> str:
    return redact_text((str(error).splitlines() or [type(error).__name__])[0].rstrip("."))
