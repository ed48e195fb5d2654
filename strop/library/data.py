"""Rows in memory as a file of the run's folder, so that a resume reads the same rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strop.errors import DataError
from strop.workers.files import atomic_path

Rows = Any
"""A list of dicts, a `datasets.Dataset` or `IterableDataset`, a pandas or polars data frame, an Arrow table, or another
object with Arrow's C stream."""
INPUTS = "inputs"
"""Folder, in a run's folder, of what the run got from Python."""


def to_table(rows: Rows, argument: str) -> pa.Table:
    """The rows as an Arrow table; `argument` names them in messages.

    Raises DataError for no rows, for rows with different keys, and for values that no column can hold.
    """
    table = _convert(rows, argument)
    if table.num_rows == 0:
        raise DataError(f"{argument} has no rows. Pass at least one.")
    return table


def write_table(table: pa.Table, folder: Path, name: str) -> Path:
    """Write the table into a run's folder, under a name with the digest of its content; returns the file."""
    digest = hashlib.sha256(str(table.schema.remove_metadata()).encode())
    for batch in table.replace_schema_metadata(None).combine_chunks().to_batches():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        digest.update(sink.getvalue())
    file = folder / INPUTS / f"{name}-{digest.hexdigest()[:12]}.parquet"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(file) as temporary:
            pq.write_table(table, temporary)
    return file


def _convert(rows: Rows, argument: str) -> pa.Table:
    kind = type(rows)
    library = kind.__module__.partition(".")[0]
    try:
        if isinstance(rows, pa.Table):
            return rows
        if library == "datasets" and isinstance(rows, Mapping):
            raise DataError(
                f"{argument} is a {kind.__name__} with the splits {', '.join(map(str, rows))}. Pass one of them, such "
                f"as {argument}=dataset[{next(iter(rows), 'train')!r}]."
            )
        if library == "datasets" and hasattr(rows, "with_format") and hasattr(rows, "data"):
            return rows.with_format("arrow")[:]
        if library == "pandas" and hasattr(rows, "columns"):
            return pa.Table.from_pandas(rows, preserve_index=False)
        if library == "polars" and hasattr(rows, "to_arrow"):
            return rows.to_arrow()
        if library == "polars" and hasattr(rows, "collect"):
            raise DataError(
                f"{argument} is a polars {kind.__name__}, which has no rows yet. Pass {argument}=frame.collect()."
            )
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.table(rows)
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise DataError(
                f"{argument} is of type {kind.__name__}. Pass a list of dicts, a datasets.Dataset, or a data frame; a "
                "path belongs into the run, as data.train.path."
            )
        return pa.Table.from_pylist(_checked(list(rows), argument))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{argument} has a column whose values are of different types, or of a type that Arrow does not have: "
            f"{' '.join(str(error).split())}. Write values of one type into each column."
        ) from error


def _checked(rows: Sequence[Any], argument: str) -> list[Any]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{argument}[{number}] is of type {type(row).__name__}. Each row is a dict.")
        if row.keys() != rows[0].keys():
            differing = sorted(map(str, row.keys() ^ rows[0].keys()))
            raise DataError(
                f"{argument}[{number}] has other keys than {argument}[0]: {', '.join(differing)}. Give all rows the "
                "same keys, with None where a value is missing."
            )
    return [dict(row) for row in rows]
