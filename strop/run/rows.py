"""`metrics.jsonl`: one JSON row per step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from strop.errors import RunFolderError

Row = dict[str, float | None]
"""A number per metric; None where it was not finite."""


def write_row(file: TextIO, step: int, metrics: Mapping[str, float]) -> None:
    """Append a step's row. It is on the disk when this returns."""
    row = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    file.write(json.dumps({"step": step} | row) + "\n")
    file.flush()
    os.fsync(file.fileno())


def read_rows(path: Path) -> list[Row]:
    """All rows, in order. A last line that a kill cut short is no row.

    Raises:
        RunFolderError: another line is not a row; the message names it.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    # After the last newline stands nothing, or what was being written when the process was killed.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{path}, line {number} is no row of metrics ({error}). Remove that line, or move the file "
                "away; the run's checkpoints do not depend on it."
            ) from error
        rows.append(row)
    return rows


def drop_rows_after(path: Path, step: int) -> list[Row]:
    """Keep the rows up to `step`, byte for byte, and drop the rest; returns those kept."""
    rows = [row for row in read_rows(path) if (row["step"] or 0) <= step]
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        beside = path.with_name(f".{path.name}.tmp")
        with beside.open("w", encoding="utf-8") as file:
            file.writelines(lines[: len(rows)])
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    return rows
