"""Rows from Parquet or JSON Lines (files, directories, URLs), `datasets` folders, the hub, and databases."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from strop.config.redact import redact_text
from strop.config.schema.data import Taskset
from strop.data.database import is_database, read_table
from strop.data.files import NAMES, Place, format_of, place_of, read_file
from strop.data.hub import read_hub, read_saved
from strop.data.rows import Part, Rows
from strop.data.splits import files_of_split
from strop.errors import DataError

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
_SAVED = ("dataset_dict.json", "state.json")
_METADATA = {"config.json", "dataset_info.json", "dataset_infos.json"}


def read_rows(taskset: Taskset) -> Rows:
    """Open everything that `path` names, and check that every file can be read.

    Raises `DataError` for what is missing, empty or malformed, and `MissingExtraError` for a URL whose
    file system or database needs a package that is not installed.
    """
    paths = (taskset.path,) if isinstance(taskset.path, str) else taskset.path
    if not all(paths) or not paths:
        raise DataError("A taskset's `path` is empty. Name a file, a directory, a dataset, or several.")
    return Rows([part for path in paths for part in _read_path(path, taskset)], taskset.limit_tasks)


def _read_path(path: str, taskset: Taskset) -> list[Part]:
    if is_database(path):
        _refuse(redact_text(path), "is a database, which has no", split=taskset.split, subset=taskset.subset)
        return [read_table(path, taskset.table)]
    place = place_of(path)
    _refuse(place.shown, "is no database, which alone has a", table=taskset.table)
    match place.kind():
        case "file":
            _refuse(place.shown, "is one file, which has no", split=taskset.split, subset=taskset.subset)
            return [read_file(place)]
        case "directory" if any(place.inside(name).kind() for name in _SAVED):
            url = place.files.unstrip_protocol(place.path)
            return [read_saved(url, place.shown, taskset.split, taskset.subset)]
        case "directory":
            return _read_directory(place, taskset)
    if _HUB_NAME.match(path) and not format_of(path):
        return [read_hub(path, taskset.split, taskset.subset)]
    raise DataError(f"There is no file or directory {place.shown}{_hint(place)}.")


def _refuse(shown: str, why: str, **keys: str | None) -> None:
    for key, value in keys.items():
        if value is not None:
            raise DataError(
                f"{shown} {why} {key}. Leave out `{key}: {value}`, or give the path of what has one."
            )


def _read_directory(place: Place, taskset: Taskset) -> list[Part]:
    if taskset.subset is not None:
        raise DataError(
            f"{place.shown} is a directory, where `subset: {taskset.subset}` means nothing. Give the "
            "directory of that subset as the path."
        )
    names = files_of_split(_data_files(place), taskset.split, place.shown)
    if len({format_of(name) for name in names}) > 1:
        raise DataError(
            f"The directory {place.shown} holds both Parquet and JSON files, perhaps the same rows twice: "
            f"{', '.join(names)}. Name the files to use as a list."
        )
    return [read_file(place.inside(name)) for name in names]


def _data_files(place: Place) -> list[str]:
    entries = {posixpath.basename(path.rstrip("/")) for path in place.files.ls(place.path, detail=False)}
    visible = sorted(name for name in entries if name[0] not in "._")
    files = [name for name in visible if format_of(name) and name not in _METADATA]
    if not files:
        folders = [name for name in visible if place.inside(name).kind() == "directory"]
        hint = f" If they are further in, give that directory: {', '.join(folders)}." if folders else ""
        raise DataError(f"The directory {place.shown} holds no data files: none is named {NAMES}.{hint}")
    return files


def _hint(place: Place) -> str:
    """Where a path goes wrong."""
    if "://" in place.shown:
        return ", or it cannot be reached"
    missing = Path(place.path)
    while not missing.parent.exists():
        missing = missing.parent
    return "" if missing == Path(place.path) else f": there is no {missing}"
