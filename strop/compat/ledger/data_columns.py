"""Columns of data files that are on this machine, for keys whose meaning depends on them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from strop.config.paths import DataFileName, data_file_name, existing_path
from strop.workers.json_text import parse_json

_ROWS = 1000
"""Rows of a file of JSON Lines whose keys are read; at the start a run names columns that it does not read."""


def known_columns(files: Iterable[str]) -> frozenset[str] | None:
    """Columns of the files that can be read here; None if none can. Missing files are reported when they are read."""
    found = [columns for file in files for columns in _columns(file)]
    return frozenset(column for columns in found for column in columns) if found else None


def _columns(path: str) -> Iterator[set[str]]:
    """Column names of each file at a path; none for unreadable files, which reading the data reports."""
    found = existing_path(path)
    if found is None:
        return
    files = sorted(found.iterdir()) if found.is_dir() else [found]
    saved = [folder for folder in (found, *files) if (folder / "state.json").is_file()]
    for file in [folder / "dataset_info.json" for folder in saved] or files:
        name = data_file_name(file.name)
        if name is None or not file.is_file() or file.name.startswith((".", "_")):
            continue
        try:
            columns = (
                _saved(file) if saved else _parquet(file) if name.format == "parquet" else _text(file, name)
            )
        except (OSError, EOFError, ValueError, KeyError, TypeError, csv.Error):
            continue
        if columns:
            yield columns


def _saved(file: Path) -> set[str]:
    """Columns of a data set that `datasets` saved in a folder, by its description."""
    return {*parse_json(file.read_text(encoding="utf-8"))["features"]}


def _parquet(file: Path) -> set[str]:
    from pyarrow.parquet import read_schema

    return {*read_schema(file).names}


def _text(file: Path, name: DataFileName) -> set[str]:
    with _open(file, name.packed) as text:
        if name.format == "csv":
            return {*next(csv.reader(text, delimiter=name.delimiter), ())}
        return {key for row in islice(_rows(text), _ROWS) if isinstance(row, dict) for key in row}


def _rows(text: IO[str]) -> Iterator[Any]:
    """The values of JSON Lines, or of one list, alone or as `data` of an object."""
    first = text.readline()
    if first.lstrip().startswith("["):
        yield from parse_json(first + text.read())
        return
    try:
        value = parse_json(first) if first.strip() else {}
    except ValueError:
        value = parse_json(first + text.read())
    if isinstance(value, dict) and isinstance(value.get("data"), list) and len(value) == 1:
        yield from value["data"]
        return
    yield value
    yield from (parse_json(line) for line in text if line.strip())


@contextmanager
def _open(file: Path, packed: str | None) -> Iterator[IO[str]]:
    if packed == ".zst":
        import pyarrow as pa

        with pa.CompressedInputStream(pa.OSFile(str(file)), "zstd") as unpacked:
            yield io.TextIOWrapper(io.BufferedReader(unpacked), encoding="utf-8-sig", newline="")
        return
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open, None: open}[packed]
    with opener(file, "rt", encoding="utf-8-sig", newline="") as text:
        yield text
