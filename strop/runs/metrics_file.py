"""Reading and writing of `metrics.jsonl`: one JSON row of metrics per step.

A row is flushed to disk before the run goes on. A row that could not be written completely is removed; one that
a kill left incomplete has no newline, and readers ignore it. A row changes only by replacing the file.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from strop.config.aliases import current_metric
from strop.config.load.schema_faults import first_fault
from strop.errors import RunFolderError
from strop.workers.files import AppendFile, atomic_path, fsync_path, read_regular
from strop.workers.json_text import parse_json

MetricsRow = dict[str, float | None]
"""Metrics of one step by name; None for a value that was not finite."""
_ROW = TypeAdapter(MetricsRow, config=ConfigDict(strict=True, allow_inf_nan=False))


class MetricsWriter:
    """Appends rows to a metrics file, and replaces the last one."""

    def __init__(self, path: Path, last_kept: int) -> None:
        """Open the file, and delete the rows after step `last_kept`. Raises `RunFolderError` if it is damaged."""
        self._path = path
        self._last_start = 0
        """Offset of the last row in the file."""
        kept = truncate_metrics(path, last_kept)
        self.last = last_metrics(kept)
        """Metrics of the last row; empty if there is none."""
        self.steps_kept = frozenset(int(row["step"] or 0) for row in kept)
        """Steps that had rows when the file was opened."""
        if path.exists():
            content = path.read_bytes()
            self._last_start = content.rfind(b"\n", 0, -1) + 1
        self._file = AppendFile(path)
        fsync_path(path.parent)

    def append(self, row: Mapping[str, float]) -> None:
        """Append a row, which has a `step`. It is on disk when this returns."""
        self._last_start = self._file.append(_encode(row))
        self._file.sync()
        self.last = dict(row)

    def replace_last(self, row: Mapping[str, float]) -> None:
        """Replace the last row; readers see the old row or the new one."""
        with atomic_path(self._path) as temporary:
            shutil.copyfile(self._path, temporary)
            with temporary.open("r+b") as file:
                file.truncate(self._last_start)
                file.seek(self._last_start)
                file.write(_encode(row))
        self._file.close()
        self._file = AppendFile(self._path)
        self.last = dict(row)

    def close(self) -> None:
        """Close the file; every row is on disk already."""
        self._file.close()


def _encode(row: Mapping[str, float]) -> bytes:
    values = {name: value if math.isfinite(value) else None for name, value in row.items()}
    return (json.dumps(values | {"step": int(row["step"])}) + "\n").encode()


def read_metrics(path: Path) -> list[MetricsRow]:
    """Read all rows, in order. A last line without a newline, left by a kill, is ignored. Deprecated
    metric names are replaced with the current ones.

    Raises:
        RunFolderError: another line is not a row; the message names the line.
    """
    return [_parse(path, number, line) for number, line in enumerate(_complete_lines(path), start=1)]


def recorded_steps(path: Path) -> int:
    """Return the last step with a row. Damaged lines are skipped."""
    last = 0
    for number, line in enumerate(_complete_lines(path), start=1):
        with suppress(RunFolderError):
            last = max(last, int(_parse(path, number, line)["step"] or 0))
    return last


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
    """Delete the rows after `step`, and keep the others byte for byte; returns the rows kept.

    Damaged lines after the row of `step` are deleted too, since the run repeats those steps. Raises
    `RunFolderError` for a damaged line before it.
    """
    if not path.exists():
        return []
    kept: list[tuple[bytes, MetricsRow]] = []
    for number, line in enumerate(_complete_lines(path), start=1):
        try:
            row = _parse(path, number, line)
        except RunFolderError:
            if any(row["step"] == step for _, row in kept):
                break
            raise
        if (row["step"] or 0) <= step:
            kept.append((line, row))
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"".join(line + b"\n" for line, _ in kept))
    return [row for _, row in kept]


def _complete_lines(path: Path) -> list[bytes]:
    """Lines that end with a newline, without it; none if there is no file."""
    try:
        # The last element is empty, or the incomplete line that a killed process left.
        return read_regular(path).split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read: {error.strerror or error}. It should be the file with one row of metrics "
            "per step. Move it away; the run's checkpoints do not depend on it."
        ) from error


def _parse(path: Path, number: int, line: bytes) -> MetricsRow:
    try:
        values = parse_json(line.decode("utf-8"))
        _ROW.validate_python(values)
        row: MetricsRow = {sys.intern(current_metric(name)): value for name, value in values.items()}
        row["step"] = int(values["step"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        reason = first_fault(error) if isinstance(error, ValidationError) else error
        raise RunFolderError(
            f"{path}, line {number} is not a row of metrics ({reason}). Remove that line, or move the "
            "file away; the run's checkpoints do not depend on it."
        ) from error
    return row
