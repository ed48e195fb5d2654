"""Client of the Data-Juicer service of Trinity-RFT (`python -m trinity.service.data_juicer.server.server`)."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from strop.config.schema.pipeline import DataJuicerConfig
from strop.data.images.messages import content_text
from strop.errors import ConfigError, RolloutError
from strop.types import Rollout, RolloutGroup, Task

T = TypeVar("T")
_MAX_QUOTE_BYTES = 200
_STATS = "__dj__stats__"
"""Column in which Data-Juicer's operators write their statistics."""


class DataJuicer:
    """Has the service run its operators on the rollouts of each group.

    A rollout is a row with `prompt_text`, `response_text`, `reward` and `index`. Rows that the service filters
    are removed from the group, and the statistics of the others become values of their `info`.
    """

    def __init__(self, section: DataJuicerConfig) -> None:
        """Raises ConfigError if the service does not answer, is another, or does not accept the operators."""
        self._url = section.url.rstrip("/")
        self._timeout = section.timeout_seconds
        request = {
            "operators": None if section.operators is None else list(section.operators),
            "config_path": section.config,
            "np": section.processes,
            "pipeline_type": "experience",
        }
        try:
            answer = self._post("create", _json(request), "application/json")
            self._session = self._parse(answer, lambda content: str(json.loads(content)["session_id"]))
        except RolloutError as error:
            raise ConfigError(
                f"{error} Start the service with python -m trinity.service.data_juicer.server.server, and write its "
                "address as the url of the operator."
            ) from error

    def __call__(self, group: RolloutGroup) -> RolloutGroup | None:
        """The group with the rollouts that are left. Raises RolloutError where the service fails."""
        rows = [_row(rollout, group.task) for rollout in group.rollouts if rollout.reward is not None]
        if not rows:
            return None
        boundary = uuid.uuid4().hex
        body = _multipart(boundary, self._session, _to_arrow(rows))
        answer = self._post("process_experience", body, f"multipart/form-data; boundary={boundary}")
        stats = self._parse(answer, _stats_by_index)
        kept = tuple(
            replace(rollout, info={**rollout.info, **stats[rollout.index]})
            for rollout in group.rollouts
            if rollout.index in stats
        )
        return replace(group, rollouts=kept) if kept else None

    def _parse(self, answer: bytes, parse: Callable[[bytes], T]) -> T:
        """Raises RolloutError for an answer that Trinity's service does not give."""
        try:
            return parse(answer)
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise self._failed(f"it answers {answer[:_MAX_QUOTE_BYTES]!r}") from error

    def _failed(self, reason: str) -> RolloutError:
        return RolloutError(f"buffer.pipeline: the Data-Juicer service at {self._url} failed: {reason}.")

    def _post(self, path: str, body: bytes, content_type: str) -> bytes:
        """Raises RolloutError."""
        request = urllib.request.Request(f"{self._url}/{path}", body, {"Content-Type": content_type})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                answer: bytes = response.read()
                return answer
        except urllib.error.HTTPError as error:
            reason = f"{error.code} {error.read()[:500].decode(errors='replace')}"
        except OSError as error:
            reason = str(error)
        raise self._failed(reason)


def _row(rollout: Rollout, task: Task) -> dict[str, Any]:
    prompt = "\n".join(str(content_text(message["content"])) for message in task.messages)
    return {
        "index": rollout.index,
        "prompt_text": prompt,
        "response_text": rollout.text,
        "reward": rollout.reward,
        "answer": None if task.answer is None else str(task.answer),
    }


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


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
