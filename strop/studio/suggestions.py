"""Suggestions for text fields: models and data files near the current folder, columns of a data file, rewards."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strop.config.paths import existing_path
from strop.rewards.registry import builtin_rewards
from strop.workers.files import open_regular
from strop.workers.json_text import parse_json

_DATA = (".jsonl", ".parquet", ".csv", ".tsv", ".json")
_CONFIGURATIONS = (".yaml", ".yml")
_DEPTH = 3
_MOST = 100
"""Suggestions of one kind, and entries of a folder that are looked at."""
_LINE_BYTES = 1_000_000


def suggest(kind: str, path: str) -> list[str]:
    """Suggestions of a kind; `path` is the data file for columns."""
    if kind == "reward":
        return sorted(builtin_rewards())
    if kind == "column":
        return _columns(path)
    if kind == "model":
        return [str(found) for found in _walk(Path(), _DEPTH) if _is_model(found)][:_MOST]
    endings = {"data": _DATA, "configuration": _CONFIGURATIONS}.get(kind, ())
    found = (each for each in _walk(Path(), _DEPTH) if each.suffix in endings and each.is_file())
    return [str(each) for each in found][:_MOST]


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Files and folders below a folder, the shallow ones first; hidden ones and environments are left out."""
    try:
        entries = sorted(folder.iterdir())[:_MOST]
    except OSError:
        return
    shown = [entry for entry in entries if not entry.name.startswith((".", "__"))]
    yield from shown
    for entry in shown:
        if depth > 1 and entry.is_dir() and not (entry / "pyvenv.cfg").exists():
            yield from _walk(entry, depth - 1)


def _is_model(path: Path) -> bool:
    return path.suffix == ".gguf" or (path.is_dir() and (path / "config.json").is_file())


def _columns(path: str) -> list[str]:
    """Columns of the first row of a data file; none for what cannot be read."""
    file = existing_path(path) if path else None
    if file is None or not file.is_file() or file.suffix not in _DATA:
        return []
    try:
        if file.suffix == ".parquet":
            return [str(name) for name in pq.read_schema(file).names]
        with open_regular(file) as opened:
            line = opened.readline(_LINE_BYTES).decode("utf-8")
        if file.suffix in (".csv", ".tsv"):
            return next(csv.reader([line], delimiter="," if file.suffix == ".csv" else "\t"), [])
        row = parse_json(line)
    except (OSError, ValueError, csv.Error, pa.ArrowException):
        return []
    return [str(name) for name in row] if isinstance(row, dict) else []
