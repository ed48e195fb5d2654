"""Datasets as Arrow files of some thousand rows each, which are mapped into memory and never loaded as a whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa

from strop.errors import DataError
from strop.pipelines.tasks.columns import column
from strop.pipelines.tasks.protocol import RowNumbers
from strop.workers.files import atomic_path

ROWS_PER_PART = 4096
"""Number of rows of a part when the dataset is read."""
ROW_ID = "__strop_row__"
"""Column of the parts with the identity of the source row: number of the dataset times 2^40, plus the row."""
DATASET_SHIFT = 40


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
