"""Interface of task operators, and the rows that they get: datasets in parts, and columns of Arrow tables."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from strop.config.schema.task_pipeline import EngineModelConfig, PassRateConfig
from strop.data.images.messages import content_text
from strop.errors import DataError
from strop.workers.files import atomic_path

RowNumbers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Row = dict[str, Any]
Say = Callable[[str], None]
"""Prints a message for the user while the pipeline waits."""
ROWS_PER_PART = 4096
"""Number of rows of a part when the dataset is read."""
ROW_ID = "__strop_row__"
"""Column of the parts with the identity of the source row: number of the dataset times 2^40, plus the row."""
DATASET_SHIFT = 40


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


@dataclass(frozen=True)
class Parts:
    """All rows between two operators."""

    files: tuple[Path, ...]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(read_part(file).num_rows for file in self.files))

    @property
    def names(self) -> list[str]:
        """Columns of the rows."""
        return [name for name in self.schema.names if name != ROW_ID]

    @cached_property
    def schema(self) -> pa.Schema:
        """Common schema of all parts, with the column of identities.

        Raises DataError for parts whose columns have no common type.
        """
        return common_schema([read_part(file).schema for file in self.files])

    def tables(self) -> Iterator[pa.Table]:
        """The parts, in order, with the common schema."""
        return (conform(read_part(file), self.schema) for file in self.files)

    def columns(self, names: Sequence[str]) -> list[pa.ChunkedArray]:
        """Complete columns; dotted paths name nested values. Raises DataError for one that does not exist."""
        tables = list(self.tables())
        found = [[column(table, name) for table in tables] for name in names]
        return [
            pa.chunked_array(
                [chunk for part in parts for chunk in part.chunks], parts[0].type if parts else pa.null()
            )
            for parts in found
        ]

    def take(self, rows: RowNumbers) -> pa.Table:
        """Rows by their numbers, in this order."""
        which = np.array([bisect_right(self._ends, row) for row in rows.tolist()], np.int64)
        tables = []
        order = np.argsort(which, kind="stable")
        for number in np.unique(which).tolist():
            begin = self._ends[number - 1] if number else 0
            inside = rows[which == number] - begin
            tables.append(conform(read_part(self.files[number]).take(inside), self.schema))
        if not tables:
            return self.schema.empty_table()
        back = np.empty(len(rows), np.int64)
        back[order] = np.arange(len(rows))
        return pa.concat_tables(tables).take(back)


def read_part(file: Path) -> pa.Table:
    """A part, mapped into memory."""
    with pa.memory_map(str(file)) as source:
        return pa.ipc.open_file(source).read_all()


def write_part(file: Path, table: pa.Table) -> None:
    """Write a part; it appears complete or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(file) as temporary, pa.ipc.new_file(str(temporary), table.schema) as writer:
        writer.write_table(table)


def part_file(folder: Path, number: int) -> Path:
    """The file of a part."""
    return folder / f"part-{number:06d}.arrow"


def common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """A schema that the tables of all schemas can have. Raises DataError if a column has no common type."""
    try:
        return pa.unify_schemas(
            [schema.remove_metadata() for schema in schemas], promote_options="permissive"
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"a column has different types in different rows: {str(error).splitlines()[0]} Write one type, such as "
            "text, in all rows"
        ) from None


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns and types of a common schema; null where it lacks a column."""
    if table.schema.equals(schema):
        return table
    arrays = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def column(table: pa.Table, path: str) -> pa.ChunkedArray:
    """The column of exactly this name, or of a dotted path into nested values. Raises DataError if there is none."""
    if path in table.column_names:
        return table.column(path)
    first, *rest = path.split(".")
    if first not in table.column_names:
        raise DataError(missing_column(path, table.column_names))
    values = table.column(first)
    for name in rest:
        kind = values.type
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise DataError(f"there is no column {path!r}: {first!r} holds {kind}, without a key {name!r}")
        values = pc.struct_field(values, name)
    return values


def missing_column(path: str, names: Sequence[str]) -> str:
    """Message for a column that no row has."""
    return f"there is no column {path!r}; the rows have {', '.join(map(repr, names)) or 'no columns'}"


def texts(table: pa.Table, path: str) -> list[str]:
    """The text of each row: a string, or the joined contents of a list of messages.

    Raises RowError for a row whose value is null or no text.
    """
    values = column(table, path)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        if values.null_count:
            raise RowError(pc.index(pc.is_null(values), True).as_py(), f"has no {path!r} (it is null)")
        return values.to_pylist()
    return [_text(value, path, row) for row, value in enumerate(values.to_pylist())]


def _text(value: Any, path: str, row: int) -> str:
    if value is None:
        raise RowError(row, f"has no {path!r} (it is null)")
    if isinstance(value, str):
        return value
    if (messages := _messages_text(value)) is not None:
        return messages
    raise RowError(
        row, f"has no text in {path!r}: it is {str(value)[:80]!r}; write a column of texts or messages"
    )


def as_text(value: Any) -> str:
    """A value as text: a string as it is, messages as their contents, other values as JSON."""
    if isinstance(value, str):
        return value
    if (messages := _messages_text(value)) is not None:
        return messages
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _messages_text(value: Any) -> str | None:
    """The joined contents of a list of messages; None for other values."""
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(each, dict) and "content" in each for each in value):
        return None
    return "\n".join(str(content_text(message["content"] or "")) for message in value)


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with a column, in the place of one of the same name."""
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
    index = table.schema.get_field_index(name)
    return table.append_column(name, array) if index < 0 else table.set_column(index, name, array)


def to_table(rows: Sequence[dict[str, Any]], names: Sequence[str] = ()) -> pa.Table:
    """A table of rows, which may have different keys; `names` are columns that it has in any case.

    Raises DataError for a column whose values have no common type.
    """
    found = dict.fromkeys([*names, *(key for row in rows for key in row)])
    arrays = []
    for name in found:
        values = [row.get(name) for row in rows]
        try:
            arrays.append(pa.array(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise DataError(
                f"the column {name!r} has values of different types, which no column of a table can have: "
                f"{str(error).splitlines()[0]}. Write one type, such as text, in all rows"
            ) from None
    return pa.table(dict(zip(found, arrays, strict=True)))
