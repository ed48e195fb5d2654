"""Operators of `data.pipeline` on rows that are read from a task queue or a stream during the run."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.schema import Run
from strop.data.sources.columns import TableRow
from strop.data.sources.rows import Row, RowSource
from strop.pipelines.tasks.columns import to_table, with_column
from strop.pipelines.tasks.execution import PartRunner, Stage, named_operators
from strop.pipelines.tasks.parts import ROW_ID
from strop.pipelines.tasks.registry import OperatorContext
from strop.rewards.judges.judge_cache import JudgeCache
from strop.runs.folder import RunFolder

log = logging.getLogger("strop.pipelines")


class RowOperators:
    """The operators of a run's pipeline, which see the rows of one read at a time.

    Replies of language models are cached in the run's folder, so that a resumed run has the same rows.
    """

    def __init__(self, run: Run) -> None:
        """Raises ConfigError for an operator that cannot be made."""
        assert run.data.pipeline is not None
        replies = JudgeCache(RunFolder.of(run).judge_cache / "tasks")
        context = OperatorContext(None, replies, log.warning)
        self._operators = named_operators(Stage(0, run.data.pipeline.operators, "rows"), context)
        self._counts: Counter[str] = Counter()

    def __call__(self, rows: RowSource, numbers: Sequence[int]) -> list[tuple[str, Row]]:
        """The rows that are left, with their ids. `numbers` are the rows' numbers in their source; a further row that
        an operator made has the id of the last row before it, and a number.

        Raises DataError for a row that an operator cannot use.
        """
        given = [rows[index] for index in range(len(rows))]
        table = with_column(to_table(given), ROW_ID, pa.array(np.arange(len(given), dtype=np.int64)))
        left, _, statistics = PartRunner(self._operators, [rows.where])(table)
        for named, found in zip(self._operators, statistics, strict=True):
            name = f"{named.number}_{named.type}"
            self._counts.update({f"{name}/rows_in": found.rows_in, f"{name}/rows_out": found.rows_out})
        return list(_identified(left.to_pylist(), numbers))

    def take_metrics(self) -> dict[str, float]:
        """Rows in and out of each operator since the last call."""
        counts, self._counts = self._counts, Counter()
        return {f"task_pipeline/{name}": float(count) for name, count in sorted(counts.items())}


def _identified(rows: Sequence[dict[str, Any]], numbers: Sequence[int]) -> list[tuple[str, Row]]:
    found: list[tuple[str, Row]] = []
    last, further = numbers[0], 0
    known: set[int] = set()
    for row in map(TableRow, rows):
        number = row.pop(ROW_ID)
        if number is not None and number >= 0 and number not in known:
            known.add(number)
            last, further = numbers[number], 0
            found.append((f"train:{last}", row))
        else:
            further += 1
            found.append((f"train:{last}.{further}", row))
    return found
