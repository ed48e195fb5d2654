"""Datasets of a script: the file or Hub name that one still equals, or a file that its rows are written to."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.compat.trl.script.session import current_session
from strop.errors import DataError
from strop.printable import counted
from strop.workers.files import atomic_path


@dataclass(frozen=True, slots=True)
class DataSource:
    """Rows of a dataset, as a taskset of a run file names them."""

    path: str
    subset: str | None = None
    split: str | None = None
    columns: tuple[str, ...] = ()
    is_streamed: bool = False


def source_of(dataset: Any, what: str, folder: Path) -> DataSource:
    """The file or Hub name with the rows of a dataset; rows that are not those of one are written to `folder`.

    Raises ConfigError for an object that is no dataset of the library `datasets`, and for one that is streamed and
    was changed, whose rows have no end that is known; DataError for rows that cannot be written.
    """
    session = current_session()
    kept = session.origins.get(id(dataset))
    if kept is not None and kept[0] is dataset and kept[1] == getattr(dataset, "_fingerprint", None):
        found: DataSource = kept[2]
        return found
    if isinstance(dataset, list) and all(isinstance(row, Mapping) for row in dataset) and dataset:
        raise session.error(f"{what} is a list; write datasets.Dataset.from_list({what}).")
    kind = type(dataset).__name__
    if kind in ("DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(map(repr, dataset))
        raise session.error(
            f"{what} has the splits {splits}; write one of them, such as dataset[{splits.split(', ')[0]}]."
        )
    if kind in ("IterableDataset",):
        raise session.error(
            f"{what} is streamed, and its rows were changed after load_dataset; load it without streaming=True, so "
            "that its rows can be written to a file."
        )
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "column_names"):
        raise session.error(f"{what} is a {kind}; write a dataset of the library datasets.")
    return written_rows(dataset, what, folder)


def written_rows(dataset: Any, what: str, folder: Path) -> DataSource:
    """A Parquet file with the rows, named by their content. Raises DataError if they cannot be written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table: pa.Table = dataset.with_format("arrow")[:].replace_schema_metadata(None)
    if not table.num_rows:
        raise current_session().error(f"{what} has no rows.")
    file = folder / f"{what}-{_fingerprint(table)}.parquet"
    if not file.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with atomic_path(file) as new:
                pq.write_table(table, new)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{file}: the rows of {what} cannot be written: {error}.") from error
    current_session().note(
        f"{what}: its {counted(table.num_rows, 'row')} are in {file}, as the script made them."
    )
    return DataSource(str(file), columns=tuple(table.column_names))


def _fingerprint(table: Any) -> str:
    """Hash of columns and rows."""
    digest = hashlib.sha256()
    for line in _lines(table):
        digest.update(line)
    return digest.hexdigest()[:16]


def _lines(table: Any) -> Iterator[bytes]:
    yield json.dumps(table.column_names).encode()
    for batch in table.to_batches(max_chunksize=1000):
        for row in batch.to_pylist():
            yield json.dumps(row, default=_as_text).encode()


def _as_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else repr(value)


def eval_sources(dataset: Any, rows_of: Callable[[Any, str], DataSource]) -> dict[str, DataSource]:
    """The eval datasets by name: one is `eval`, those of a dict have its keys. `rows_of` finds the rows of a dataset by
    the name of its argument."""
    if dataset is None:
        return {}
    if not isinstance(dataset, Mapping):
        return {"eval": rows_of(dataset, "eval_dataset")}
    if not all(isinstance(name, str) and name for name in dataset):
        raise current_session().error("eval_dataset is a dict with names that are not texts; write texts.")
    return {name: rows_of(one, f"eval_dataset_{name}") for name, one in dataset.items()}
