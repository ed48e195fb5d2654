"""Reading of datasets, at once or as a stream of rows.

Parquet, JSON Lines, CSV or TSV files, directories, URLs, `datasets` folders, hub, databases.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from strop.config.paths import DATA_FILE_PATTERNS, data_file_name
from strop.config.redact import redact_text
from strop.config.schema.data import GeneratorConfig, TasksetConfig
from strop.data.sources.data_path import DataPath, first_line, resolve_path
from strop.data.sources.files import files_of_split, read_file, stream_file
from strop.data.sources.generators import generate_rows, is_generator
from strop.data.sources.hub import read_hub_dataset, read_saved_dataset, stream_hub_dataset
from strop.data.sources.rows import DatasetRows, Row, RowSource
from strop.data.sources.sql_table import is_database_url, read_table
from strop.errors import DataError

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
_SAVED = ("dataset_dict.json", "state.json")
_METADATA = {"config.json", "dataset_info.json", "dataset_infos.json"}


def read_rows(taskset: TasksetConfig) -> DatasetRows:
    """Open everything that `path` names, and check that every file can be read.

    Raises `DataError` for a dataset that is missing, empty or malformed, and `MissingExtraError` for a URL
    whose file system or database needs a package that is not installed.
    """
    paths = (taskset.path,) if isinstance(taskset.path, str) else taskset.path
    if not all(paths) or not paths:
        raise DataError(
            "A taskset's `path` is empty. Write a file, a directory, a dataset, or a list of them."
        )
    return DatasetRows([part for path in paths for part in _read_path(path, taskset)], taskset.limit_tasks)


def _read_path(path: str, taskset: TasksetConfig) -> list[RowSource]:
    if is_generator(path):
        _refuse(path, "generates tasks, and has no", table=taskset.table, subset=taskset.subset)
        return [generate_rows(path, taskset.generator or GeneratorConfig(), taskset.split)]
    if taskset.generator is not None:
        raise DataError(
            f"{redact_text(path)} exists already, so `generator` does not apply. Remove it, or write a path such as "
            "reasoning_gym://basic_arithmetic."
        )
    if is_database_url(path):
        _refuse(redact_text(path), "is a database, which has no", split=taskset.split, subset=taskset.subset)
        return [read_table(path, taskset.table)]
    files = find_files(path, taskset)
    if files is not None:
        return [read_file(place, taskset.text_columns) for place in files]
    place = resolve_path(path)
    if place.kind() == "directory":
        url = place.filesystem.unstrip_protocol(place.path)
        return [read_saved_dataset(url, place.display_path, taskset.split, taskset.subset)]
    return [read_hub_dataset(path, taskset.split, taskset.subset)]


def find_files(path: str, taskset: TasksetConfig) -> list[DataPath] | None:
    """The data files that a path names; None for a folder that `datasets` saved, and for a name on the hub.

    Raises `DataError` if there is neither a file nor a directory.
    """
    place = resolve_path(path)
    _refuse(place.display_path, "is not a database, so it has no", table=taskset.table)
    match place.kind():
        case "file":
            _refuse(
                place.display_path, "is one file, which has no", split=taskset.split, subset=taskset.subset
            )
            return [place]
        case "directory" if any(place.child(name).kind() for name in _SAVED):
            return None
        case "directory":
            return _directory_files(place, taskset)
    if _HUB_NAME.match(path) and not data_file_name(path):
        return None
    raise DataError(f"There is no file or directory {place.display_path}{_hint(place)}.")


def _refuse(shown: str, why: str, **keys: str | None) -> None:
    for key, value in keys.items():
        if value is not None:
            raise DataError(
                f"{shown} {why} {key}. Remove `{key}: {value}`, or write the path of a dataset that has one."
            )


def _directory_files(place: DataPath, taskset: TasksetConfig) -> list[DataPath]:
    if taskset.subset is not None:
        folder = place.child(taskset.subset)
        if folder.kind() != "directory":
            raise DataError(
                f"{place.display_path} is a directory, which has no subset {taskset.subset!r}: there is no "
                "subdirectory of that name. Write the directory of that subset as the path."
            )
        place = folder
    names = files_of_split(_data_files(place), taskset.split, place.display_path)
    if len({name and name.format for name in map(data_file_name, names)}) > 1:
        raise DataError(
            f"The directory {place.display_path} holds files of several formats, perhaps the same rows "
            "twice: "
            f"{', '.join(names)}. Name the files to use as a list."
        )
    return [place.child(name) for name in names]


def _data_files(place: DataPath) -> list[str]:
    try:
        with place.access():
            paths = place.filesystem.ls(place.path, detail=False)
    except OSError as error:
        raise DataError(f"{place.display_path} cannot be read: {first_line(error)}.") from None
    entries = {posixpath.basename(path.rstrip("/")) for path in paths}
    visible = sorted(name for name in entries if name[0] not in "._")
    files = [name for name in visible if data_file_name(name) and name not in _METADATA]
    if not files:
        folders = [name for name in visible if place.child(name).kind() == "directory"]
        hint = f" If they are in a subdirectory, write its path: {', '.join(folders)}." if folders else ""
        raise DataError(
            f"The directory {place.display_path} has no data files: none is named {DATA_FILE_PATTERNS}.{hint}"
        )
    return files


def _hint(place: DataPath) -> str:
    """The first missing folder of a path."""
    if "://" in place.display_path:
        return ", or it cannot be reached"
    missing = Path(place.path)
    while not missing.parent.exists():
        missing = missing.parent
    return "" if missing == Path(place.path) else f": there is no {missing}"


def stream_rows(taskset: TasksetConfig) -> Iterator[tuple[str, Row]]:
    """Location and values of each row of everything that `path` names, in order; at most `limit_tasks`.

    Raises `DataError` for a source that is missing or malformed, when its rows are reached.
    """
    for number, row in enumerate(_rows(taskset)):
        if taskset.limit_tasks is not None and number >= taskset.limit_tasks:
            return
        yield row


def _rows(taskset: TasksetConfig) -> Iterator[tuple[str, Row]]:
    for path in (taskset.path,) if isinstance(taskset.path, str) else taskset.path:
        places = find_files(path, taskset)
        try:
            if places is None:
                yield from stream_hub_dataset(path, taskset.split, taskset.subset)
            else:
                for place in places:
                    yield from stream_file(place, taskset.text_columns)
        except OSError as error:
            raise DataError(f"{redact_text(path)} cannot be read: {first_line(error)}.") from None
