"""`metrics.jsonl`: one JSON row per step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
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


def joined(*files: list[Row]) -> list[Row]:
    """The rows of several files as one each step, in the steps' order; of one name the last file's counts."""
    steps: dict[float, Row] = {}
    for row in (row for rows in files for row in rows):
        steps.setdefault(row["step"] or 0, {}).update(row)
    return [steps[step] for step in sorted(steps)]


def last_row(rows: Sequence[Row]) -> dict[str, float]:
    """The last row, a null as the NaN that it stands for."""
    last = rows[-1] if rows else {}
    return {name: math.nan if value is None else value for name, value in last.items()}


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
