"""Index of a run's rollouts: the small columns of all rollout files in memory, texts read for the rows shown.

The index of a million rollouts takes about 50 MB. New files are added to it, changed ones are read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strop.runs.folder import RunFolder
from strop.runs.rollout_file import SCHEMA, rollout_files

RolloutOrder = Literal["newest", "oldest", "best", "worst", "longest", "shortest"]
TRAINING = "training"
"""Name of the set of training rollouts; an eval taskset's is `eval/<name>`."""
_COLUMNS = ("step", "group", "index", "status", "reward", "response_tokens")
_TEXTS = ("prompt", "text", "messages", "answer")
_THREADS = 4
_SEARCH_SECONDS = 5.0
"""Longest search for a text; the answer tells how many rollouts were searched."""
_STRETCH = 1000
"""Rollouts whose texts are read at once in a search."""
_SORT_KEYS: dict[RolloutOrder, tuple[str, str]] = {
    "best": ("reward", "descending"),
    "worst": ("reward", "ascending"),
    "longest": ("response_tokens", "descending"),
    "shortest": ("response_tokens", "ascending"),
}


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Conditions on rollouts; None accepts all."""

    source: str = TRAINING
    """Set of rollouts: `training`, or `eval/<name>`."""
    first_step: int | None = None
    last_step: int | None = None
    status: str | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    group: str | None = None
    text: str | None = None
    """Text that the prompt, the response or the reference answer contains, without regard to case."""
    order: RolloutOrder = "newest"


@dataclass(frozen=True, slots=True)
class FoundRollouts:
    """One page of the rollouts that a filter accepts."""

    rows: tuple[dict[str, Any], ...]
    """Complete rows of the rollout files, with the file's name and the row's `place` in it."""
    total: int
    """Number of rollouts that the filter accepts, apart from its text."""
    searched: int
    """Number of those in which the text was looked for; `total` without a text."""
    has_more: bool


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """Rewards of one group: the difference between its best and its worst rollout."""

    step: int
    group: str
    best: float
    worst: float
    rollouts: int


@dataclass(frozen=True, slots=True)
class _IndexedFile:
    path: Path
    version: tuple[int, int]
    """Time of the last change in nanoseconds, and size in bytes."""
    source: str
    table: pa.Table


@dataclass(frozen=True, slots=True)
class _RolloutSet:
    table: pa.Table
    """Columns of the index, the number of each row, and its file and place in the file."""
    paths: tuple[Path, ...]


class RolloutIndex:
    """Index of the rollouts in a run folder; several threads may use it."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._files: dict[Path, _IndexedFile] = {}
        self._sets: dict[str, _RolloutSet] = {}

    def refresh(self) -> None:
        """Read the files that are new or have changed; damaged files are left out."""
        with self._lock:
            paths = (path for folder in self._folders for path in rollout_files(folder))
            found = {path: version for path in paths if (version := _version(path)) is not None}
            changed = [path for path, version in found.items() if self._is_unknown(path, version)]
            gone = self._files.keys() - found.keys()
            if not changed and not gone:
                return
            with ThreadPoolExecutor(_THREADS) as pool:
                read = pool.map(lambda path: _read_index(path, found[path], _source(path)), changed)
            kept = {path: file for path, file in self._files.items() if path not in gone}
            # A new table, because another thread may be going through the old one.
            self._files = kept | {each.path: each for each in read if each is not None}
            self._sets = {}

    @property
    def sources(self) -> list[str]:
        """Names of the sets of rollouts that the run has, training first."""
        names = {each.source for each in self._files.values()}
        return sorted(names, key=lambda name: (name != TRAINING, name))

    def steps(self, source: str) -> list[int]:
        """Steps of which a set has rollouts."""
        return [int(step) for step in sorted(pc.unique(self._table(source)["step"]).to_pylist())]

    def groups(self, source: str) -> list[tuple[int, str]]:
        """Step and id of each group of a set."""
        grouped = self._table(source).group_by(["step", "group"]).aggregate([])
        return sorted(zip(grouped["step"].to_pylist(), grouped["group"].to_pylist(), strict=True))

    def find(self, accepted: RolloutFilter, offset: int, limit: int) -> FoundRollouts:
        """Rows `offset` to `offset + limit` of the rollouts that the filter accepts."""
        found = self._set(accepted.source)
        table = _filtered(found.table, accepted)
        if accepted.text:
            ordered = _ordered(table, accepted.order, table.num_rows)
            return _search(ordered, found.paths, accepted.text, offset, limit)
        last = offset + limit
        page = _ordered(table, accepted.order, last).slice(offset, limit)
        rows = tuple(_rows(page, found.paths))
        return FoundRollouts(rows, table.num_rows, table.num_rows, last < table.num_rows)

    def spreads(self, accepted: RolloutFilter, offset: int, limit: int) -> list[GroupSpread]:
        """Groups with the largest difference between their rewards first."""
        table = _filtered(self._table(accepted.source), accepted)
        table = table.filter(pc.is_valid(table["reward"]))
        grouped = table.group_by(["step", "group"]).aggregate(
            [("reward", "max"), ("reward", "min"), ("reward", "count")]
        )
        spread = pc.subtract(grouped["reward_max"], grouped["reward_min"])
        grouped = grouped.append_column("spread", spread)
        keys = [("spread", "descending"), ("step", "descending"), ("group", "ascending")]
        chosen = grouped.take(pc.sort_indices(grouped, sort_keys=keys)).slice(offset, limit)
        return [
            GroupSpread(row["step"], row["group"], row["reward_max"], row["reward_min"], row["reward_count"])
            for row in chosen.to_pylist()
        ]

    @property
    def _folders(self) -> tuple[RunFolder, ...]:
        return (self._folder, self._folder.explorer)

    def _is_unknown(self, path: Path, version: tuple[int, int]) -> bool:
        known = self._files.get(path)
        return known is None or known.version != version

    def _table(self, source: str) -> pa.Table:
        return self._set(source).table

    def _set(self, source: str) -> _RolloutSet:
        with self._lock:
            if source not in self._sets:
                files = [each for each in self._files.values() if each.source == source]
                self._sets[source] = _concatenate(sorted(files, key=lambda each: each.path.name))
            return self._sets[source]


def _concatenate(files: Sequence[_IndexedFile]) -> _RolloutSet:
    """One table of all files, in the order of their rows."""
    tables = [
        each.table.append_column("file", pa.array(np.full(each.table.num_rows, number, np.int32)))
        for number, each in enumerate(files)
    ]
    table = pa.concat_tables(tables) if tables else _index_columns(SCHEMA.empty_table())
    if not tables:
        table = table.append_column("file", pa.array([], pa.int32()))
    table = table.append_column("row", pa.array(np.arange(table.num_rows)))
    return _RolloutSet(table, tuple(each.path for each in files))


def _source(path: Path) -> str:
    return f"eval/{path.parent.name}" if path.parent.parent.name == "eval" else TRAINING


def _version(path: Path) -> tuple[int, int] | None:
    """Time of the last change and size; None for a file that a resumed run has deleted since it was listed."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _read_index(path: Path, version: tuple[int, int], source: str) -> _IndexedFile | None:
    """The small columns of a file; None if it cannot be read."""
    try:
        table = pq.read_table(path, columns=list(_COLUMNS))
    except (OSError, UnicodeDecodeError, pa.ArrowException):
        return None
    return _IndexedFile(path, version, source, _index_columns(table))


def _index_columns(table: pa.Table) -> pa.Table:
    """The columns of the index, with the number of each row in its file."""
    return table.select(_COLUMNS).append_column("place", pa.array(np.arange(table.num_rows, dtype=np.int32)))


def _filtered(table: pa.Table, accepted: RolloutFilter) -> pa.Table:
    conditions = [
        compare(table[column], value)
        for column, compare, value in (
            ("step", pc.greater_equal, accepted.first_step),
            ("step", pc.less_equal, accepted.last_step),
            ("status", pc.equal, accepted.status),
            ("reward", pc.greater_equal, accepted.min_reward),
            ("reward", pc.less_equal, accepted.max_reward),
            ("group", pc.equal, accepted.group),
        )
        if value is not None
    ]
    return table.filter(reduce(pc.and_kleene, conditions)) if conditions else table


def _ordered(table: pa.Table, order: RolloutOrder, count: int) -> pa.Table:
    """The first `count` rows in an order, or more of them."""
    if order == "oldest":
        return table
    if order == "newest":
        newest = np.arange(table.num_rows - 1, max(table.num_rows - count, 0) - 1, -1)
        return table.take(pa.array(newest))
    key, direction = _SORT_KEYS[order]
    table = table.filter(pc.is_valid(table[key]))
    keys = [(key, direction), ("row", "descending")]
    return table.take(pc.select_k_unstable(table, min(count, table.num_rows), keys))


def _search(table: pa.Table, paths: Sequence[Path], text: str, offset: int, limit: int) -> FoundRollouts:
    """Look for a text in one stretch of rows after the other, until the page is full."""
    found: list[dict[str, Any]] = []
    wanted, deadline = text.casefold(), time.monotonic() + _SEARCH_SECONDS
    searched = 0
    while searched < table.num_rows and len(found) <= offset + limit and time.monotonic() < deadline:
        rows = _rows(table.slice(searched, _STRETCH), paths)
        found += [row for row in rows if any(wanted in str(row[name]).casefold() for name in _TEXTS)]
        searched = min(searched + _STRETCH, table.num_rows)
    page = tuple(found[offset : offset + limit])
    return FoundRollouts(page, table.num_rows, searched, len(found) > offset + limit)


def _rows(page: pa.Table, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The complete rows of a page; each file is opened once."""
    keys = list(zip(page["file"].to_pylist(), page["place"].to_pylist(), strict=True))
    places: dict[int, list[int]] = {}
    for file, place in keys:
        places.setdefault(file, []).append(place)
    read: dict[tuple[int, int], dict[str, Any]] = {}
    for file, wanted in places.items():
        for place, row in _read_places(paths[file], sorted(set(wanted))):
            read[file, place] = row | {"file": paths[file].name, "place": place}
    return [read[key] for key in keys if key in read]


def _read_places(path: Path, places: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a file by their numbers; only the row groups that contain them are read."""
    try:
        with pq.ParquetFile(path) as file:
            begin = 0
            for number in range(file.num_row_groups):
                end = begin + file.metadata.row_group(number).num_rows
                inside = [place for place in places if begin <= place < end]
                if inside:
                    rows = file.read_row_group(number).take([place - begin for place in inside])
                    yield from zip(inside, rows.to_pylist(), strict=True)
                begin = end
    except (OSError, UnicodeDecodeError, pa.ArrowException):
        return  # the file was deleted or replaced since the index was built
