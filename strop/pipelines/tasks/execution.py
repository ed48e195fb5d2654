"""Execution of a pipeline's operators over parts on disk, which a later start continues where an earlier one stopped.

The work folder has one folder per stage. A stage is a row of operators that need no more than the rows of one part, or
one operator that needs the whole dataset. Each part has its rows, its removals and its statistics.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.schema.task_pipeline import TaskOperatorConfig
from strop.errors import DataError
from strop.pipelines.tasks.columns import missing_column, with_column
from strop.pipelines.tasks.parts import (
    DATASET_SHIFT,
    ROW_ID,
    Parts,
    part_file,
    write_part,
)
from strop.pipelines.tasks.protocol import Processed, RowError
from strop.pipelines.tasks.registry import Operator, OperatorContext, make_operator, scope_of
from strop.pipelines.tasks.statistics import OperatorStatistics
from strop.workers.files import atomic_write

Tick = Callable[[int], None]
"""Called with the number of rows that have been handled."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Operators that run together."""

    first: int
    """Number of the first operator."""
    sections: tuple[TaskOperatorConfig, ...]
    scope: str


def stages_of(sections: Sequence[TaskOperatorConfig]) -> list[Stage]:
    """The stages of a pipeline: neighbors of the same scope, but each operator over the whole dataset alone."""
    stages: list[Stage] = []
    for number, section in enumerate(sections):
        scope = scope_of(section)
        if stages and scope == stages[-1].scope != "dataset":
            before = stages.pop()
            stages.append(Stage(before.first, (*before.sections, section), scope))
        else:
            stages.append(Stage(number, (section,), scope))
    return stages


@dataclass(frozen=True, slots=True)
class NamedOperator:
    """An operator and its place in the run file."""

    number: int
    type: str
    operator: Operator

    def fault(self, message: str, where: str | None = None) -> DataError:
        """An error of this operator."""
        at = "" if where is None else f"{where}: "
        return DataError(f"data.pipeline.operators.{self.number} ({self.type}): {at}{message}.")

    def check_columns(self, names: Sequence[str], where: str) -> None:
        """Raises DataError for a column that the operator reads and no row has."""
        for path in self.operator.reads:
            if path not in names and path.split(".")[0] not in names:
                raise self.fault(missing_column(path, names), where)


def named_operators(stage: Stage, context: OperatorContext) -> list[NamedOperator]:
    """The operators of a stage."""
    return [
        NamedOperator(number, section.type, make_operator(section, context))
        for number, section in enumerate(stage.sections, stage.first)
    ]


@dataclass(frozen=True, slots=True)
class PartRunner:
    """Runs the operators of a stage on one part."""

    operators: Sequence[NamedOperator]
    sources: Sequence[Callable[[int], str]]

    def __call__(self, table: pa.Table) -> tuple[pa.Table, list[dict[str, Any]], list[OperatorStatistics]]:
        """The rows that are left, the removals, and the statistics of each operator."""
        removals: list[dict[str, Any]] = []
        statistics = []
        for named in self.operators:
            found = OperatorStatistics()
            statistics.append(found)
            started = time.perf_counter()
            result = self._apply(named, table)
            found.add(table.num_rows, result, time.perf_counter() - started)
            removals += describe_removals(named, result, table.column(ROW_ID).to_pylist())
            table = with_identities(result, table)
        return table, removals, statistics

    def _apply(self, named: NamedOperator, table: pa.Table) -> Processed:
        if not table.num_rows:
            return Processed(_with_added(table, named.operator.adds), np.arange(0))
        ids = table.column(ROW_ID).to_pylist()
        names = [name for name in table.column_names if name != ROW_ID]
        named.check_columns(names, location(ids[0], self.sources))
        try:
            return named.operator(table)  # type: ignore[return-value]
        except RowError as error:
            raise named.fault(str(error), location(ids[error.row], self.sources)) from error
        except DataError as error:
            raise named.fault(str(error).removesuffix(".")) from error


def _with_added(table: pa.Table, names: Sequence[str]) -> pa.Table:
    for name in names:
        if name not in table.column_names:
            table = with_column(table, name, pa.nulls(0))
    return table


def with_identities(result: Processed, before: pa.Table) -> pa.Table:
    """The rows of a result with the identities of the rows that they come from; -1 for new rows."""
    if ROW_ID in result.table.column_names:
        return result.table
    ids = before.column(ROW_ID).to_numpy()
    own = (
        np.where(result.parents >= 0, ids[result.parents], -1)
        if len(ids)
        else np.full(len(result.parents), -1)
    )
    return with_column(result.table, ROW_ID, own)


def location(identity: int | None, sources: Sequence[Callable[[int], str]]) -> str:
    """The location of a source row, for messages."""
    if identity is None or identity < 0 or identity >> DATASET_SHIFT >= len(sources):
        return "a new row"
    return sources[identity >> DATASET_SHIFT](identity & ((1 << DATASET_SHIFT) - 1))


def describe_removals(named: NamedOperator, result: Processed, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The removals of a result, by the identities of the rows, for the file of removed rows."""
    return [
        {
            "id": ids[removal.row],
            "operator": named.number,
            "type": named.type,
            "reason": removal.reason,
            "detail": removal.detail,
            "like": None if removal.like is None else ids[removal.like],
        }
        for removal in result.removals
    ]


class WorkFolder:
    """Folder of a stage's parts, of which some may be complete."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, number: int) -> bool:
        """Whether a part is complete; its statistics are written last."""
        return self._statistics(number).is_file()

    def write(
        self,
        number: int,
        table: pa.Table,
        removals: Sequence[dict[str, Any]],
        statistics: Sequence[OperatorStatistics],
    ) -> None:
        """Write a complete part."""
        write_part(part_file(self.path, number), table)
        if removals:
            lines = "".join(json.dumps(removal, ensure_ascii=False) + "\n" for removal in removals)
            atomic_write(self.path / f"removed-{number:06d}.jsonl", lines)
        atomic_write(self._statistics(number), json.dumps([each.to_json() for each in statistics]))

    def statistics(self, number: int) -> list[dict[str, Any]]:
        """The statistics of a complete part, by operator."""
        found: list[dict[str, Any]] = json.loads(self._statistics(number).read_text())
        return found

    def removals(self) -> Iterator[dict[str, Any]]:
        """The removed rows of all parts, in order."""
        for file in sorted(self.path.glob("removed-*.jsonl")):
            with file.open(encoding="utf-8") as lines:
                yield from map(json.loads, lines)

    def _statistics(self, number: int) -> Path:
        return self.path / f"part-{number:06d}.json"


def run_dataset_stage(
    stage: Stage, parts: Parts, folder: Path, context: OperatorContext, tick: Tick
) -> Parts:
    """Run an operator over the whole dataset; an interrupted one starts again."""
    work = WorkFolder(folder)
    done = folder / "complete.json"
    if not done.is_file():
        (named,) = named_operators(stage, context)
        if len(parts):
            ids = parts.take(np.zeros(1, np.int64)).column(ROW_ID)[0].as_py()
            named.check_columns(parts.names, location(ids, context.sources))
        count = 0
        results = _located(named, parts, context)
        started = time.perf_counter()
        for count, (result, ids) in enumerate(results, 1):
            statistics = OperatorStatistics()
            statistics.add(0, result, time.perf_counter() - started)
            removals = describe_removals(named, result, ids)
            work.write(count - 1, _identified(result, ids), removals, [statistics])
            tick(result.table.num_rows)
            started = time.perf_counter()
        atomic_write(done, json.dumps({"parts": count, "rows_in": len(parts)}))
    count = json.loads(done.read_text())["parts"]
    return Parts(tuple(part_file(folder, number) for number in range(count)))


def _located(
    named: NamedOperator, parts: Parts, context: OperatorContext
) -> Iterator[tuple[Processed, Sequence[int]]]:
    """The results of an operator, each with the identities of all rows."""
    identities: list[int] = []
    try:
        (found,) = parts.columns([ROW_ID])
        identities = found.to_pylist()
        for result in named.operator(parts):  # type: ignore[union-attr]
            yield result, identities
    except RowError as error:
        raise named.fault(str(error), location(identities[error.row], context.sources)) from error
    except DataError as error:
        raise named.fault(str(error).removesuffix(".")) from error


def _identified(result: Processed, ids: Sequence[int]) -> pa.Table:
    return with_identities(result, pa.table({ROW_ID: pa.array(ids, pa.int64())}))
