"""Operators of experiences and of tasks that have a Data-Juicer service process the rows."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strop.config.schema.buffer import DataJuicerConfig
from strop.config.schema.task_pipeline import DataJuicerTasksConfig
from strop.errors import DataError, RolloutError
from strop.pipelines.juicer.client import JuicerClient, ServiceError
from strop.pipelines.juicer.service import EFFECTS, INDEX
from strop.pipelines.operators import prompt_text
from strop.pipelines.tasks.operator import (
    ROW_ID,
    ROWS_PER_PART,
    Parts,
    Processed,
    Removal,
    Scores,
    with_column,
)
from strop.types import Rollout, RolloutGroup, Task

_MAX_QUOTE_BYTES = 200
_STATS = "__dj__stats__"
"""Column in which Data-Juicer's operators write their statistics."""
_OWN = "__dj__"
"""Prefix of the columns that Data-Juicer keeps for itself."""
_TASK_STATS = f"{_OWN}stats__"


class DataJuicer:
    """Has the service run its operators on the rollouts of each group.

    A rollout is a row with `prompt`, `response`, `text` (the response), `reward`, `answer` and `index`. Rows that the
    service filters are removed from the group, and the statistics of the others become values of their `info`.
    """

    def __init__(self, section: DataJuicerConfig) -> None:
        """Raises ConfigError if the service cannot be started, is another, or does not accept the operators."""
        self._client = JuicerClient(section, "experience")

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        """The group with the rollouts that are left. Raises RolloutError where the service fails."""
        rows = [_row(rollout, group.task) for rollout in group.rollouts if rollout.reward is not None]
        if not rows:
            return None
        boundary, arrow, answer = uuid.uuid4().hex, _to_arrow(rows), io.BytesIO()
        try:
            self._client.process(
                "process_experience",
                lambda session: _multipart(boundary, session, arrow),
                f"multipart/form-data; boundary={boundary}",
                answer,
            )
        except ServiceError as error:
            raise RolloutError(f"buffer.pipeline: {self._at(str(error))}") from error
        stats = self._stats(answer.getvalue())
        kept = tuple(
            replace(rollout, info={**rollout.info, **stats[rollout.index]})
            for rollout in group.rollouts
            if rollout.index in stats
        )
        return replace(group, rollouts=kept) if kept else None

    def _stats(self, answer: bytes) -> dict[int, dict[str, Any]]:
        """Raises RolloutError for an answer that no such service gives."""
        try:
            return _stats_by_index(answer)
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            reason = self._at(f"it answers {answer[:_MAX_QUOTE_BYTES]!r}")
            raise RolloutError(f"buffer.pipeline: {reason}") from error

    def _at(self, reason: str) -> str:
        return f"the Data-Juicer service at {self._client.address} failed: {reason.rstrip('.')}."


def _row(rollout: Rollout, task: Task) -> dict[str, Any]:
    prompt = prompt_text(task)
    return {
        "index": rollout.index,
        "prompt": prompt,
        "response": rollout.text,
        "text": rollout.text,
        "prompt_text": prompt,
        "response_text": rollout.text,
        "reward": rollout.reward,
        "answer": None if task.answer is None else str(task.answer),
    }


def _to_arrow(rows: list[dict[str, Any]]) -> bytes:
    table = pa.Table.from_pylist(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _stats_by_index(content: bytes) -> dict[int, dict[str, Any]]:
    """The statistics of the rows that the service kept, by the index of the rollout."""
    with pa.ipc.open_stream(content) as reader:
        return {int(row["index"]): row.get(_STATS) or {} for row in reader.read_all().to_pylist()}


def _multipart(boundary: str, session: str, arrow: bytes) -> bytes:
    """The form of a request: the session's id, and the rows as a file."""
    disposition = "Content-Disposition: form-data; name="
    head = (
        f'--{boundary}\r\n{disposition}"session_id"\r\n\r\n{session}\r\n'
        f'--{boundary}\r\n{disposition}"arrow_data"; filename="dataset.arrow"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return head.encode() + arrow + f"\r\n--{boundary}--\r\n".encode()


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
    if _TASK_STATS in table.column_names and pa.types.is_struct(table.schema.field(_TASK_STATS).type):
        stats = table.column(_TASK_STATS)
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
