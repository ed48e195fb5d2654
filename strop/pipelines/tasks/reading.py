"""Reading of a dataset's rows as Arrow tables."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.pipelines.tasks.columns import to_table
from strop.pipelines.tasks.parts import ROWS_PER_PART

_ALL_COLUMNS = ("",)
"""Columns for a scan that reads all of them: one that no dataset has."""


def read_tables(rows: DatasetRows, first: int = 0, images: str | None = None) -> Iterator[pa.Table]:
    """All rows from row `first` on, in tables of some thousand.

    Paths of images in the column `images` become absolute. Raises DataError for rows that no table can hold.
    """
    scanned = islice(rows.scan(_ALL_COLUMNS), first, None)
    while chunk := list(islice(scanned, ROWS_PER_PART)):
        if images is not None:
            for number, row in enumerate(chunk, first):
                if images in row:
                    row[images] = _absolute(row[images], rows.folder(number))
        try:
            yield to_table(chunk)
        except DataError as error:
            last = rows.where(first + len(chunk) - 1)
            raise DataError(f"data.pipeline: {rows.where(first)} to {last}: {error}.") from None
        first += len(chunk)


def _absolute(value: Any, folder: str) -> Any:
    """The value of an image column with paths that do not depend on the data file's folder."""
    if isinstance(value, list):
        return [_absolute(each, folder) for each in value]
    if isinstance(value, dict) and value.get("path") and not value.get("bytes"):
        return {**value, "path": _absolute(value["path"], folder)}
    if not isinstance(value, str) or not folder or "://" in value or posixpath.isabs(value):
        return value
    return posixpath.join(folder, value)
