"""Execution of a pipeline's operators over parts on disk, which a later start continues where an earlier one stopped.

The work folder has one folder per stage. A stage is a row of operators that need no more than the rows of one part, or
one operator that needs the whole dataset. Each part has its rows, its removals and its statistics.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.schema.task_pipeline import TaskOperatorConfig
from strop.errors import DataError
from strop.pipelines.tasks.operator import (
    DATASET_SHIFT,
    ROW_ID,
    Parts,
    Processed,
    RowError,
    Scores,
    conform,
    missing_column,
    part_file,
    read_part,
    with_column,
    write_part,
)
from strop.pipelines.tasks.registry import Operator, OperatorContext, make_operator, scope_of
from strop.workers.child_process import process_pool
from strop.workers.files import atomic_write

Tick = Callable[[int], None]
"""Called with the number of rows that have been handled."""
OpenExecutor = Callable[[int], AbstractContextManager[Executor]]
"""Opens an executor with a number of workers: processes of this machine, or of a cluster."""
_MARK = "@@row@@"
_made: list[tuple[Stage, list[NamedOperator]]] = []
"""Operators that this worker process made last."""
_BINS = 20


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


@dataclass(slots=True)
class OperatorStatistics:
    """Statistics of one operator, over all rows or a part of them."""

    rows_in: int = 0
    rows_out: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    """Removed rows by reason."""
    counts: Counter[str] = field(default_factory=Counter)
    """Further numbers of rows."""
    scores: dict[str, list[Scores]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, rows_in: int, result: Processed, seconds: float) -> None:
        """Add the result for some rows."""
        self.rows_in += rows_in
        self.rows_out += result.table.num_rows
        self.removed.update(removal.reason for removal in result.removals)
        self.counts.update(result.counts)
        for name, values in result.scores.items():
            self.scores.setdefault(name, []).append(np.asarray(values, np.float64))
        self.seconds += seconds

    def to_json(self) -> dict[str, Any]:
        """Values for a file; `merge` reads them."""
        return {
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "removed": dict(self.removed),
            "counts": dict(self.counts),
            "scores": {name: np.concatenate(values).tolist() for name, values in self.scores.items()},
            "seconds": self.seconds,
        }

    def merge(self, written: Mapping[str, Any]) -> None:
        """Add the statistics that `to_json` gave for other rows."""
        self.rows_in += written["rows_in"]
        self.rows_out += written["rows_out"]
        self.removed.update(written["removed"])
        self.counts.update(written["counts"])
        for name, values in written["scores"].items():
            self.scores.setdefault(name, []).append(np.array(values, np.float64))
        self.seconds += written["seconds"]

    def summary(self) -> dict[str, Any]:
        """Values for the manifest, with histograms in place of the scores."""
        histograms = {name: histogram(np.concatenate(values)) for name, values in self.scores.items()}
        return {
            **self.to_json(),
            "scores": {name: found for name, found in histograms.items() if found},
            "seconds": round(self.seconds, 3),
        }


def histogram(values: Scores) -> dict[str, Any]:
    """Counts of values in bins of equal width, with their mean; one bin for equal values, empty for no finite ones."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    low, high = values.min(), values.max()
    counts, edges = np.histogram(values, bins=_BINS if low < high else [low, high])
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "min": float(low),
        "max": float(high),
        "edges": edges.tolist(),
        "counts": counts.tolist(),
    }


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
            removals += _describe_removals(named, result, table.column(ROW_ID).to_pylist())
            table = _with_identities(result, table)
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


def _with_identities(result: Processed, before: pa.Table) -> pa.Table:
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


def _describe_removals(named: NamedOperator, result: Processed, ids: Sequence[int]) -> list[dict[str, Any]]:
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
            removals = _describe_removals(named, result, ids)
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
    return _with_identities(result, pa.table({ROW_ID: pa.array(ids, pa.int64())}))


_PartResult = tuple[pa.Table, list[dict[str, Any]], list[OperatorStatistics]]


@contextmanager
def local_processes(workers: int) -> Iterator[Executor]:
    """Processes of this machine."""
    pool = process_pool(workers, "data.pipeline.processes")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def run_part_stage(
    stage: Stage,
    parts: Parts,
    folder: Path,
    context: OperatorContext,
    workers: int,
    open_executor: OpenExecutor,
    tick: Tick,
) -> Parts:
    """Run operators that handle rows one part after the other; complete parts are not run again.

    `workers` above 1 are those of an executor, for operators that need no service of the run.
    """
    work = WorkFolder(folder)
    todo = [number for number in range(len(parts.files)) if not work.has(number)]
    tick(len(parts) - sum(read_part(parts.files[number]).num_rows for number in todo))
    operators = named_operators(stage, context)  # its errors come before those of a worker
    if workers > 1 and stage.scope == "rows" and len(todo) > 1:
        with open_executor(min(workers, len(todo))) as executor:
            results = _parallel(stage, parts, todo, executor, 2 * workers, context)
            for number, result in zip(todo, results, strict=True):
                work.write(number, *result)
                tick(read_part(parts.files[number]).num_rows)
    else:
        run = PartRunner(operators, context.sources)
        for number in todo:
            table = conform(read_part(parts.files[number]), parts.schema)
            work.write(number, *run(table))
            tick(table.num_rows)
    return Parts(tuple(part_file(folder, number) for number in range(len(parts.files))))


def _parallel(
    stage: Stage,
    parts: Parts,
    todo: Sequence[int],
    executor: Executor,
    ahead: int,
    context: OperatorContext,
) -> Iterator[_PartResult]:
    """The results of the parts in their order; `ahead` parts are under way at most."""
    waiting: deque[Future[_PartResult | str]] = deque()
    left = deque(todo)
    try:
        while left or waiting:
            while left and len(waiting) < ahead:
                table = conform(read_part(parts.files[left.popleft()]), parts.schema)
                waiting.append(executor.submit(_run_part, stage, table))
            result = waiting.popleft().result()
            if isinstance(result, str):
                raise DataError(_with_location(result, context.sources))
            yield result
    except BrokenExecutor as error:
        raise DataError(
            "data.pipeline: a process of the pipeline ended before its work was done: it ran out of memory, was "
            'killed, or was started by a script without the guard `if __name__ == "__main__":`. The same '
            f"command continues; data.pipeline.processes: 1 needs no such processes. ({error})"
        ) from None


def _run_part(stage: Stage, table: pa.Table) -> _PartResult | str:
    """The result of one part, in a worker process that may be on another machine. A fault in the rows is a text, whose
    row `_with_location` finds."""
    try:
        if not _made or _made[0][0] != stage:
            _made[:] = [(stage, named_operators(stage, OperatorContext(None, None, lambda message: None)))]
        return PartRunner(_made[0][1], [lambda row: f"{_MARK}{row}{_MARK}"])(table)
    except DataError as error:
        return str(error)


def _with_location(fault: str, sources: Sequence[Callable[[int], str]]) -> str:
    """A fault with the location of the row that it names by its identity."""
    before, _, rest = fault.partition(_MARK)
    identity, _, after = rest.partition(_MARK)
    return f"{before}{location(int(identity), sources)}{after}" if identity else before
