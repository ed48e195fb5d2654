"""Orders of the training tasks: `data.order` and `data.shuffle` as a `TaskOrder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from strop.config.schema.data import (
    ColumnOrderConfig,
    CurriculumOrderConfig,
    DifficultyOrderConfig,
    TaskOrderConfig,
)
from strop.data.curriculum import CurriculumOrder
from strop.data.difficulty import DifficultyOrder, FloatArray
from strop.data.encoding.truncation import RowNumbers
from strop.data.epoch_order import EpochOrder, IndexArray, TaskOrder
from strop.data.sources.columns import value_at
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError


def make_task_order(
    section: TaskOrderConfig | None,
    rows: DatasetRows,
    numbers: RowNumbers,
    *,
    seed: int,
    shuffle: bool,
    incomplete: Literal["drop", "keep"],
    name: str,
) -> TaskOrder:
    """The order of the tasks of the rows `numbers`. Raises `DataError` for a column that cannot be sorted."""
    size = len(numbers)
    if isinstance(section, CurriculumOrderConfig):
        return CurriculumOrder(size, section, seed=seed, shuffle=shuffle, name=name)
    if isinstance(section, DifficultyOrderConfig):
        references = reference_rates(section, rows, numbers)
        return DifficultyOrder(references, section, seed=seed, shuffle=shuffle, name=name)
    ranks = None if section is None else column_ranks(section, rows, numbers)
    return EpochOrder(size, seed=seed, shuffle=shuffle, incomplete=incomplete, name=name, ranks=ranks)


def column_ranks(section: ColumnOrderConfig, rows: DatasetRows, numbers: RowNumbers) -> IndexArray:
    """[tasks] Rank of each task by its column; equal values have equal ranks. Raises `DataError`."""
    places = {value: place for place, value in enumerate(section.values)}
    wanted = np.zeros(len(rows), dtype=bool)
    wanted[numbers] = True
    values: list[float] | list[str] = []
    for number, row in enumerate(rows.scan([section.column])):
        if wanted[number]:
            where = rows.where(number)
            value = value_at(row, section.column, where)
            if section.values:
                if not isinstance(value, str) or value not in places:
                    raise DataError(
                        f"{where}: the column {section.column!r} is {value!r}, which data.order.values does not name. "
                        f"It names {', '.join(section.values)}; add the value in its place."
                    )
                value = places[value]
            _require_comparable(value, values, where, section.column)
            values.append(value)
    ranks = np.unique(np.array(values), return_inverse=True)[1].astype(np.int64)
    return -ranks if section.descending else ranks


def reference_rates(section: DifficultyOrderConfig, rows: DatasetRows, numbers: RowNumbers) -> FloatArray:
    """[tasks, 2] Pass rates of the two reference models. Raises `DataError` for a value that is none."""
    wanted = np.zeros(len(rows), dtype=bool)
    wanted[numbers] = True
    rates: list[list[float]] = []
    for number, row in enumerate(rows.scan([*section.columns])):
        if wanted[number]:
            where = rows.where(number)
            rates.append(
                [_pass_rate(value_at(row, column, where), where, column) for column in section.columns]
            )
    return np.array(rates, dtype=np.float64).reshape(-1, 2)


def _pass_rate(value: object, where: str, column: str) -> float:
    if isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    raise DataError(
        f"{where}: the column {column!r} is {value!r}, and data.order difficulty needs a pass rate from 0 to 1. Write "
        "another column, or fill in the value."
    )


def _require_comparable(value: object, before: Sequence[object], where: str, column: str) -> None:
    kind = "text" if isinstance(value, str) else "number"
    is_number = isinstance(value, int | float) and value == value
    if not (isinstance(value, str) or is_number):
        raise DataError(
            f"{where}: the column {column!r} is {value!r}, and data.order sorts by a number or text. Write another "
            "column, or fill in the value."
        )
    if before and isinstance(before[0], str) != isinstance(value, str):
        raise DataError(
            f"{where}: the column {column!r} is {value!r}, a {kind}, and other rows have a value of another type. "
            "data.order sorts by numbers or by text; make the column one of them."
        )
