"""Suggestions for text fields: models and data files near the current folder, columns of a data file, rewards."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from strop.config.load.yaml_file import read_yaml
from strop.config.paths import existing_path
from strop.errors import ConfigError
from strop.rewards.registry import builtin_rewards
from strop.runs.folder import RunFolder
from strop.runs.overview import find_runs
from strop.studio.questions import value_at
from strop.workers.files import open_regular
from strop.workers.json_text import parse_json

_DATA = (".jsonl", ".parquet", ".csv", ".tsv", ".json")
_CONFIGURATIONS = (".yaml", ".yml")
_DEPTH = 3
_MOST = 100
"""Suggestions of one kind, and entries of a folder that are looked at."""
_LINE_BYTES = 1_000_000


def suggest(kind: str, path: str, runs: Path) -> list[str]:
    """Suggestions of a kind; `path` is the data file for columns, `runs` the folder of earlier runs."""
    if kind == "reward":
        return sorted(builtin_rewards())
    if kind == "column":
        return _columns(path)
    if kind == "model":
        models = [str(found) for found in _walk(Path(), _DEPTH) if _is_model(found)]
        return list(dict.fromkeys([*models, *_of_runs(runs, "model")]))[:_MOST]
    endings = {"data": _DATA, "configuration": _CONFIGURATIONS}.get(kind, ())
    found = [str(each) for each in _walk(Path(), _DEPTH) if each.suffix in endings and _is_document(each)]
    return list(dict.fromkeys([*found, *(_of_runs(runs, "data") if kind == "data" else ())]))[:_MOST]


def _of_runs(runs: Path, kind: Literal["model", "data"]) -> Iterator[str]:
    """Models that the latest runs have written or begun with, or their data, named as in their run files."""
    found = find_runs(runs) if runs.is_dir() else ()
    for run in sorted(found, key=lambda each: each.stat().st_mtime, reverse=True)[:_MOST]:
        folder = RunFolder(run)
        if kind == "model" and _is_model(folder.model):
            yield str(folder.model)
        try:
            values = read_yaml(folder.run_file).values
        except ConfigError:
            continue
        names = ("model.path",) if kind == "model" else ("data.train.path", "data.eval.0.path")
        for value in (value_at(values, name.split(".")) for name in names):
            if isinstance(value, str) and value:
                yield value


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


def _is_document(path: Path) -> bool:
    """Whether a path is a file, and no part of a model."""
    return path.is_file() and not (path.parent / "config.json").is_file()


def _is_model(path: Path) -> bool:
    """Whether a path has weights; the folder of a tokenizer has none."""
    if path.suffix == ".gguf":
        return path.is_file()
    endings = ("safetensors", "safetensors.index.json", "bin", "bin.index.json")
    return (path / "config.json").is_file() and any(
        (path / f"{stem}.{ending}").is_file() for stem in ("model", "pytorch_model") for ending in endings
    )


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
