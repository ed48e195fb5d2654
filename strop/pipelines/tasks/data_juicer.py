"""Task operator that has a Data-Juicer service process all rows of a dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strop.config.schema.task_pipeline import DataJuicerTasksConfig
from strop.errors import DataError
from strop.pipelines.juicer.client import JuicerClient, ServiceError
from strop.pipelines.juicer.service import EFFECTS, INDEX
from strop.pipelines.tasks.columns import with_column
from strop.pipelines.tasks.parts import ROW_ID, ROWS_PER_PART, Parts
from strop.pipelines.tasks.protocol import Processed, Removal, Scores

_OWN = "__dj__"
"""Prefix of the columns that Data-Juicer keeps for itself."""
_STATS = f"{_OWN}stats__"


class DataJuicerTasks:
    """Sends the rows to the service as one stream, from disk to disk, and reads what its operators leave."""

    reads: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()

    def __init__(self, section: DataJuicerTasksConfig) -> None:
        """Raises ConfigError if the service cannot be started, is another, or does not accept the operators."""
        self._client = JuicerClient(section, "task")

    def __call__(self, rows: Parts) -> Iterator[Processed]:
        """The rows that the operators leave. Raises DataError where the service fails."""
        if not len(rows):
            return
        with TemporaryDirectory(prefix="strop-") as folder:
            source, answer = Path(folder) / "rows.arrow", Path(folder) / "answer.arrow"
            _write(rows, source)
            try:
                self._send(source, answer)
            finally:
                self._client.close()
            try:
                with pa.memory_map(str(answer)) as file, pa.ipc.open_stream(file) as reader:
                    yield from _results(reader.read_all(), len(rows))
            except pa.ArrowException as error:
                raise DataError(
                    f"the Data-Juicer service at {self._client.address} answers no rows: {error}"
                ) from error

    def _send(self, source: Path, answer: Path) -> None:
        with source.open("rb") as body, answer.open("wb") as target:

            def rewound(_session: str) -> Any:
                body.seek(0)
                return body

            try:
                self._client.process(
                    "process_rows?session={session}", rewound, "application/octet-stream", target
                )
            except ServiceError as error:
                raise DataError(str(error)) from error


def _write(rows: Parts, file: Path) -> None:
    schema = rows.schema.append(pa.field(INDEX, pa.int64()))
    first = 0
    with pa.OSFile(str(file), "wb") as target, pa.ipc.new_stream(target, schema) as writer:
        for table in rows.tables():
            numbers = pa.array(np.arange(first, first + table.num_rows))
            writer.write_table(table.append_column(INDEX, numbers).cast(schema))
            first += table.num_rows


def _results(table: pa.Table, total: int) -> Iterator[Processed]:
    """The rows of an answer, in parts; the first one has the removals and scores."""
    effects = json.loads((table.schema.metadata or {}).get(EFFECTS, b"[]"))
    removals = sorted(
        (Removal(row, f"{each['name']}") for each in effects for row in each["removed"]),
        key=lambda removal: removal.row,
    )
    parents = (
        np.full(table.num_rows, -1) if INDEX not in table.column_names else table.column(INDEX).to_numpy()
    )
    if not effects and table.num_rows < total:
        left = {*parents.tolist()}
        removals = [Removal(row, "data_juicer") for row in range(total) if row not in left]
    table, scores = _with_statistics(table)
    counts = {f"{each['name']} kept": int(each["rows_out"]) for each in effects}
    for begin in range(0, max(1, table.num_rows), ROWS_PER_PART):
        part = table.slice(begin, ROWS_PER_PART)
        yield Processed(part, parents[begin : begin + ROWS_PER_PART], removals, scores, counts)
        removals, scores, counts = [], {}, {}


def _with_statistics(table: pa.Table) -> tuple[pa.Table, dict[str, Scores]]:
    """The table with a column per statistic and none of Data-Juicer's own, and the statistics that are numbers."""
    scores: dict[str, Scores] = {}
    if _STATS in table.column_names and pa.types.is_struct(table.schema.field(_STATS).type):
        stats = table.column(_STATS)
        for field in stats.type:
            values = pc.struct_field(stats, field.name)
            table = with_column(table, field.name, values)
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                scores[field.name] = values.drop_null().to_numpy().astype(np.float64)
    own = [name for name in table.column_names if name.startswith(_OWN) or name == INDEX]
    table = table.drop_columns(own).replace_schema_metadata(None)
    if ROW_ID not in table.column_names:
        table = table.append_column(ROW_ID, pa.array(np.full(table.num_rows, -1)))
    return table, scores
