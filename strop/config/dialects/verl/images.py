"""Whether training rows hold images: they are refused by looking, so that text-only rows are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strop.config.dialects.theirs import Theirs
from strop.config.local import existing


def no_images(theirs: Theirs, column: Any) -> bool:
    """Whether no local training file has the column. Files that are not there are found missing later."""
    files = theirs["data.train_files"]
    paths = [files] if isinstance(files, str) else files or []
    return column is None or not any(column in _columns(existing(path)) for path in paths)


def _columns(path: Path | None) -> list[str]:
    """Of the first row; none where that cannot be told, which is said when the file is read."""
    if path is None or not path.is_file():
        return []
    if path.suffix == ".parquet":
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import read_schema

        try:
            return list(read_schema(path).names)
        except (ArrowInvalid, OSError):
            return []
    try:
        with path.open(encoding="utf-8") as lines:
            row = json.loads(next(lines, "{}"))
    except ValueError:
        return []
    return list(row) if isinstance(row, dict) else []
