"""Task operators that choose and order rows: random samples, mixtures, sorting by columns or by weights."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strop.config.schema.data import TasksetConfig
from strop.config.schema.task_pipeline import MixtureConfig, MixtureInputConfig, OrderConfig, SampleConfig
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.pipelines.tasks.operator import (
    DATASET_SHIFT,
    ROW_ID,
    ROWS_PER_PART,
    Parts,
    Processed,
    Removal,
    RowError,
    RowNumbers,
    Scores,
    common_schema,
    conform,
    to_table,
    with_column,
)

_PRIORITY = "priority"
"""Column with the weighted sum by which rows are ordered."""
_ALL_COLUMNS = ("",)
"""Columns for a scan that reads all of them: one that no dataset has."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Keeps a random choice of rows."""

    section: SampleConfig

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.section.weight is None else (self.section.weight,)

    adds = ()

    def __call__(self, rows: Parts) -> Iterator[Processed]:
        size = self.section.count or round(len(rows) * (self.section.fraction or 0))
        chosen = np.arange(len(rows))
        if size < len(rows):
            probabilities = None
            if self.section.weight is not None:
                weights = _numbers(rows, self.section.weight)
                _check_weights(weights, self.section.weight, size)
                probabilities = weights / weights.sum()
            generator = np.random.default_rng(self.section.seed)
            chosen = np.sort(generator.choice(len(rows), size, replace=False, p=probabilities))
        yield from _chosen(rows, chosen, "not sampled")


def _check_weights(weights: Scores, name: str, size: int) -> None:
    bad = np.flatnonzero(~(weights >= 0) | np.isinf(weights))
    if len(bad):
        raise RowError(
            int(bad[0]), f"has {weights[bad[0]]:g} as {name!r}; a weight is a number of at least 0"
        )
    positive = int((weights > 0).sum())
    if positive < size:
        raise DataError(
            f"{positive} of {len(weights)} rows have a {name!r} above 0, fewer than the {size} rows of the sample; "
            "write a smaller count or fraction"
        )


@dataclass(frozen=True, slots=True)
class Order:
    """Sorts rows by columns, by a weighted sum, or at random; keeps the first ones."""

    section: OrderConfig

    @property
    def reads(self) -> tuple[str, ...]:
        return (*self.section.by, *self.section.weights)

    @property
    def adds(self) -> tuple[str, ...]:
        return (_PRIORITY,) if self.section.weights else ()

    def __call__(self, rows: Parts) -> Iterator[Processed]:
        priority = None
        if self.section.weights:
            priority = sum(
                (weight * _numbers(rows, name) for name, weight in self.section.weights.items()),
                np.zeros(len(rows)),
            )
            order = np.argsort(-priority, kind="stable")
        elif self.section.by:
            order = self._sorted(rows)
        else:
            order = np.random.default_rng(self.section.seed).permutation(len(rows))
        order = order[: self.section.limit]
        order = np.concatenate([order[fold :: self.section.folds] for fold in range(self.section.folds)])
        yield from _chosen(rows, order, f"beyond the limit of {self.section.limit} rows", priority)

    def _sorted(self, rows: Parts) -> RowNumbers:
        direction = "descending" if self.section.descending else "ascending"
        keys = pa.table(dict(zip(self.section.by, rows.columns(self.section.by), strict=True)))
        keys = keys.append_column(ROW_ID, pa.array(np.arange(len(rows))))
        for name in self.section.by:
            if keys.column(name).null_count:
                raise RowError(
                    pc.index(pc.is_null(keys.column(name)), True).as_py(), f"has no {name!r} (it is null)"
                )
        by = [*((name, direction) for name in self.section.by), (ROW_ID, "ascending")]
        return pc.sort_indices(keys, sort_keys=by).to_numpy().astype(np.int64)


def _numbers(rows: Parts, name: str) -> Scores:
    (values,) = rows.columns([name])
    if values.null_count:
        raise RowError(pc.index(pc.is_null(values), True).as_py(), f"has no {name!r} (it is null)")
    try:
        return values.cast(pa.float64()).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise RowError(0, f"has {str(values[0])[:80]!r} as {name!r}, which is not a number") from None


def _chosen(
    rows: Parts, order: RowNumbers, reason: str, priority: Scores | None = None
) -> Iterator[Processed]:
    """The rows of an order in tables of the usual size; the removals come with the first one."""
    left_out = np.ones(len(rows), bool)
    left_out[order] = False
    removals = [Removal(row, reason) for row in np.flatnonzero(left_out).tolist()]
    for first in range(0, max(len(order), 1), ROWS_PER_PART):
        part = order[first : first + ROWS_PER_PART]
        table = rows.take(part)
        scores: dict[str, Any] = {}
        if priority is not None:
            table = with_column(table, _PRIORITY, priority[part])
            scores = {_PRIORITY: priority[part]}
        yield Processed(table, part, removals if first == 0 else (), scores)


class Mix:
    """Adds the rows of further datasets."""

    def __init__(self, section: MixtureConfig, sources: list[Callable[[int], str]]) -> None:
        """The locations of the further rows are appended to `sources`."""
        self._section = section
        self._datasets = [read_rows(_taskset(each)) for each in section.inputs]
        self._first_source = len(sources)
        sources.extend(dataset.where for dataset in self._datasets)

    reads = ()

    @property
    def adds(self) -> tuple[str, ...]:
        return () if self._section.output is None else (self._section.output,)

    def __call__(self, rows: Parts) -> Iterator[Processed]:
        generator = np.random.default_rng(self._section.seed)
        chosen = [self._choose(generator, number) for number in range(len(self._datasets))]
        begins = np.cumsum([0, len(rows), *map(len, chosen)])
        order = np.arange(begins[-1])
        if self._section.shuffle:
            order = generator.permutation(order)
        schema = self._schema(rows)
        for first in range(0, len(order), ROWS_PER_PART):
            part = order[first : first + ROWS_PER_PART]
            yield self._table(rows, chosen, begins, part, schema)

    def _choose(self, generator: np.random.Generator, number: int) -> RowNumbers:
        size, count = len(self._datasets[number]), self._section.inputs[number].count
        if count is None or count >= size:
            return np.arange(size)
        return np.sort(generator.choice(size, count, replace=False))

    def _schema(self, rows: Parts) -> pa.Schema:
        """Columns of all datasets. Only the types are read, of every row."""
        schemas = [rows.schema]
        for number, dataset in enumerate(self._datasets):
            schemas += [self._renamed(table, number).schema for table in read_tables(dataset)]
        return common_schema(schemas)

    def _renamed(self, table: pa.Table, number: int) -> pa.Table:
        names = self._section.inputs[number].columns
        return table.rename_columns([names.get(name, name) for name in table.column_names])

    def _table(
        self, rows: Parts, chosen: list[RowNumbers], begins: RowNumbers, part: RowNumbers, schema: pa.Schema
    ) -> Processed:
        which = np.searchsorted(begins, part, side="right") - 1
        tables, back = [], []
        for number in np.unique(which).tolist():
            at = np.flatnonzero(which == number)
            inside = part[at] - begins[number]
            table = rows.take(inside) if number == 0 else self._rows(number - 1, chosen[number - 1][inside])
            tables.append(conform(table, schema))
            back.append(at)
        table = pa.concat_tables(tables).take(np.argsort(np.concatenate(back)))
        if self._section.output is not None:
            table = with_column(table, self._section.output, which)
        return Processed(table, np.where(which == 0, part, -1))

    def _rows(self, number: int, rows: RowNumbers) -> pa.Table:
        dataset: DatasetRows = self._datasets[number]
        table = self._renamed(to_table([dataset[row] for row in rows.tolist()]), number)
        return with_column(table, ROW_ID, rows + ((self._first_source + number) << DATASET_SHIFT))


def _taskset(section: MixtureInputConfig) -> TasksetConfig:
    return TasksetConfig(path=section.path, split=section.split, subset=section.subset, table=section.table)


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
