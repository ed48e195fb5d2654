"""Reading and writing of `metrics.jsonl`: one JSON row of metrics per step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from strop.config.aliases import current_metric
from strop.errors import RunFolderError
from strop.workers.atomic_write import atomic_write

MetricsRow = dict[str, float | None]
"""Metrics of one step by name; None for a value that was not finite."""


def append_metrics(file: TextIO, step: int, metrics: Mapping[str, float]) -> None:
    """Append the row of a step. The row is on disk when this returns."""
    row = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    file.write(json.dumps({"step": step} | row) + "\n")
    file.flush()
    os.fsync(file.fileno())


def read_metrics(path: Path) -> list[MetricsRow]:
    """Read all rows, in order. A last line without a newline, left by a kill, is ignored. Deprecated
    metric names are replaced with the current ones.

    Raises:
        RunFolderError: another line is not a row; the message names the line.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    # The last element is empty, or the incomplete line that a killed process left.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = {current_metric(name): value for name, value in json.loads(line).items()}
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(
                f"{path}, line {number} is not a row of metrics ({error}). Remove that line, or move the "
                "file away; the run's checkpoints do not depend on it."
            ) from error
        rows.append(row)
    return rows


def merge_rows(*files: list[MetricsRow]) -> list[MetricsRow]:
    """Merge the rows of several files into one row per step, ordered by step; the last file's values win."""
    steps: dict[float, MetricsRow] = {}
    for row in (row for rows in files for row in rows):
        steps.setdefault(row["step"] or 0, {}).update(row)
    return [steps[step] for step in sorted(steps)]


def last_metrics(rows: Sequence[MetricsRow]) -> dict[str, float]:
    """Return the last row, with NaN for null."""
    last = rows[-1] if rows else {}
    return {name: math.nan if value is None else value for name, value in last.items()}


def truncate_metrics(path: Path, step: int) -> list[MetricsRow]:
    """Delete the rows after `step`, and keep the others byte for byte; returns the rows kept."""
    rows = [row for row in read_metrics(path) if (row["step"] or 0) <= step]
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        atomic_write(path, "".join(lines[: len(rows)]), durable=True)
    return rows
