"""Interfaces of task operators, and the results that they return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from strop.config.schema.task_pipeline import EngineModelConfig, PassRateConfig
from strop.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from strop.pipelines.tasks.parts import Parts

RowNumbers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Row = dict[str, Any]


class RowError(DataError):
    """A row that an operator cannot use. The pipeline adds the operator and the location of the row."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
        """Number of the row in the table that the operator got."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A row that an operator removed."""

    row: int
    """Number of the row in the operator's input."""
    reason: str
    """Reason, the same text for all rows that one condition removes."""
    detail: str = ""
    """Value of this row that the condition is about."""
    like: int | None = None
    """Number of the row of which this one is a duplicate."""


@dataclass(frozen=True, slots=True)
class Processed:
    """Output of an operator for some rows."""

    table: pa.Table
    parents: RowNumbers
    """[rows out] The input row of each row; -1 for a row that comes from none."""
    removals: Sequence[Removal] = ()
    """The input rows without a row in the output."""
    scores: Mapping[str, Scores] = field(default_factory=dict)
    """[values] Scores of the input rows, for histograms; rows without a score have none."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Further numbers of rows, such as those without a usable reply."""


class TaskOperator(Protocol):
    """Operator that handles rows in groups of any size, without regard to other rows."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns that the rows need; dotted paths name nested values."""
        ...

    @property
    def adds(self) -> tuple[str, ...]:
        """Columns that the rows have afterwards."""
        ...

    def __call__(self, table: pa.Table) -> Processed:
        """The rows that are kept or added, in order. Raises RowError for a row that it cannot use."""
        ...


class DatasetOperator(Protocol):
    """Operator that compares, chooses or orders rows, and so needs all of them; they stay on disk."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns that the rows need; dotted paths name nested values."""
        ...

    @property
    def adds(self) -> tuple[str, ...]:
        """Columns that the rows have afterwards."""
        ...

    def __call__(self, rows: Parts) -> Iterator[Processed]:
        """The rows that are kept or added, in order, in several tables; `parents` and removals count from the first
        row of all. Raises RowError for a row that it cannot use."""
        ...


class PipelineServices(Protocol):
    """Services of a run for operators: its tokenizer, its inference engine, its workflow and its reward."""

    def count_tokens(self, texts: Sequence[str]) -> RowNumbers:
        """[texts] The number of tokens of each text."""
        ...

    def complete(self, model: EngineModelConfig, prompts: Sequence[str], seed: int) -> list[str]:
        """The reply of a model to each prompt. The engine starts at the first call."""
        ...

    def model_fingerprint(self, path: str | None) -> str:
        """Identity of the weights of a model; None is the run's initial model."""
        ...

    def rollout_fingerprint(self) -> str:
        """Identity of workflow, reward and prompt encoding, which decide the rewards of a task."""
        ...

    def rewards(self, section: PassRateConfig, table: pa.Table, numbers: Sequence[int]) -> list[Rewards]:
        """The rewards of answers to each row. The draws depend on the number of the row only."""
        ...


@dataclass(frozen=True, slots=True)
class Rewards:
    """Rewards of the answers to one task."""

    scored: tuple[float, ...]
    failed: int = 0
    """Number of answers that failed or could not be scored."""
    fault: str | None = None
    """Reason why the task cannot be sampled at all; None if it can."""


Say = Callable[[str], None]
"""Prints a message for the user while the pipeline waits."""


def kept(
    table: pa.Table,
    removals: Sequence[Removal],
    scores: Mapping[str, Scores] | None = None,
    counts: Mapping[str, int] | None = None,
) -> Processed:
    """The table without the removed rows."""
    if not removals:
        return Processed(table, np.arange(table.num_rows), (), scores or {}, counts or {})
    mask = np.ones(table.num_rows, bool)
    mask[[removal.row for removal in removals]] = False
    parents = np.flatnonzero(mask)
    return Processed(table.take(parents), parents, removals, scores or {}, counts or {})
