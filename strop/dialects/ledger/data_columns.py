"""Columns of data files that are on this machine, for keys whose meaning depends on them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from strop.config.paths import existing_path


def known_columns(files: Iterable[str]) -> frozenset[str] | None:
    """Columns of the files that can be read here; None if none can. Missing files are reported when they are read."""
    found = [columns for file in files if (columns := _columns(existing_path(file))) is not None]
    return frozenset(column for columns in found for column in columns) if found else None


def _columns(path: Path | None) -> list[str] | None:
    """Column names of a file's first row; None for an unreadable file, which reading the data reports."""
    if path is None or not path.is_file():
        return None
    if path.suffix == ".parquet":
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import read_schema

        try:
            return list(read_schema(path).names)
        except (ArrowInvalid, OSError):
            return None
    try:
        with path.open(encoding="utf-8") as lines:
            row = json.loads(next(lines, "{}"))
    except (OSError, ValueError, RecursionError):
        return None
    return list(row) if isinstance(row, dict) else None
