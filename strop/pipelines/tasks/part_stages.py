"""Execution of operators that handle rows one part after the other, in this process or in workers of an executor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from strop.errors import DataError
from strop.pipelines.tasks.execution import (
    NamedOperator,
    PartRunner,
    Stage,
    Tick,
    WorkFolder,
    location,
    named_operators,
)
from strop.pipelines.tasks.parts import Parts, conform, part_file, read_part
from strop.pipelines.tasks.registry import OperatorContext
from strop.pipelines.tasks.statistics import OperatorStatistics
from strop.workers.child_process import process_pool

OpenExecutor = Callable[[int], AbstractContextManager[Executor]]
"""Opens an executor with a number of workers: processes of this machine, or of a cluster."""
PartResult = tuple[pa.Table, list[dict[str, Any]], list[OperatorStatistics]]
_MARK = "@@row@@"


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
) -> Iterator[PartResult]:
    """The results of the parts in their order; `ahead` parts are under way at most."""
    waiting: deque[Future[PartResult | str]] = deque()
    left = deque(todo)
    try:
        while left or waiting:
            while left and len(waiting) < ahead:
                table = conform(read_part(parts.files[left.popleft()]), parts.schema)
                waiting.append(executor.submit(run_part, stage, table))
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


_made: list[tuple[Stage, list[NamedOperator]]] = []
"""Operators that this worker process made last."""


def run_part(stage: Stage, table: pa.Table) -> PartResult | str:
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
