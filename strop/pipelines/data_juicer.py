"""Experience operator that has a Data-Juicer service process the rollouts of each group."""

from __future__ import annotations

import io
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa

from strop.config.schema.buffer import DataJuicerConfig
from strop.errors import RolloutError
from strop.pipelines.juicer.client import JuicerClient, ServiceError
from strop.pipelines.services import prompt_text
from strop.types import Rollout, RolloutGroup, Task

_MAX_QUOTE_BYTES = 200
_STATS = "__dj__stats__"
"""Column in which Data-Juicer's operators write their statistics."""


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
