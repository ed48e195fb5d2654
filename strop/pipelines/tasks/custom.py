"""Task operators of the user: a class whose objects are called with rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from strop.config.schema.task_pipeline import CustomTaskOperatorConfig
from strop.config.user_code import ImportPath, construct
from strop.errors import ConfigError, DataError, StropError
from strop.pipelines.tasks.columns import to_table
from strop.pipelines.tasks.parts import ROW_ID
from strop.pipelines.tasks.protocol import Processed, Removal


class CustomTaskOperator:
    """Operator of the user. It is called with a list of rows and returns a list of rows.

    A row that comes back, changed or not, is the same dict, or a copy of it. Further rows are new ones. Where the class
    has attributes `reads` and `adds`, they name columns.
    """

    def __init__(self, section: CustomTaskOperatorConfig) -> None:
        """Raises ConfigError for a class that cannot be made."""
        self._name = section.operator
        what = f"data.pipeline: operator {section.operator!r}"
        kind = ImportPath(section.operator, what, "Class", (), ConfigError).load()
        self._operator = construct(kind, what, ConfigError, **section.args)
        if not callable(self._operator):
            raise ConfigError(f"{what}: its objects cannot be called; write a method __call__(self, rows).")

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(getattr(self._operator, "reads", ()))

    @property
    def adds(self) -> tuple[str, ...]:
        return tuple(getattr(self._operator, "adds", ()))

    def __call__(self, table: pa.Table) -> Processed:
        rows = table.to_pylist()
        try:
            result = self._operator([dict(row) for row in rows])
        except StropError:
            raise
        except Exception as error:  # the user's code
            raise DataError(f"it raised {type(error).__name__}: {error}") from error
        found = self._checked(result)
        numbers = {row[ROW_ID]: number for number, row in enumerate(rows)}
        parents = np.array([numbers.get(row.get(ROW_ID), -1) for row in found], np.int64)
        new = to_table([{**row, ROW_ID: row.get(ROW_ID, -1)} for row in found], table.column_names)
        kept = {*parents.tolist()}
        removals = [Removal(row, f"removed by {self._name}") for row in range(len(rows)) if row not in kept]
        return Processed(new, parents, removals)

    def _checked(self, result: Any) -> Sequence[dict[str, Any]]:
        if isinstance(result, list | tuple) and all(isinstance(row, dict) for row in result):
            return result
        kinds = {type(row).__name__ for row in result} if isinstance(result, list | tuple) else set()
        what = f"a list with {', '.join(sorted(kinds))}" if kinds else f"a {type(result).__name__}"
        raise DataError(f"it returned {what}; an operator returns a list of rows, which are dicts")
