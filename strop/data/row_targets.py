"""Numbers of rows that a reward model learns: the margin of a pair, the score of a response."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from strop.config.schema.data import TasksetConfig
from strop.data.sources.columns import value_at
from strop.errors import DataError


def row_target(row: Mapping[str, Any], section: TasksetConfig, where: str) -> float:
    """The score of a row's response, or the margin of its pair, which is 0 without a column.

    Raises `DataError` for a value that is no finite number.
    """
    column = section.score if section.chosen is None else section.margin
    if column is None:
        return 0.0
    value = value_at(row, column, where)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    what = "score" if section.chosen is None else "margin"
    raise DataError(
        f"{where}: the {what} in the column {column!r} is {value!r:.60}; write a finite number. Remove rows without a "
        f"{what}."
    )
