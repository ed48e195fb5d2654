"""Rollouts as Parquet: one row each, with all that one wants to see of an answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strop.types import Group, Message, Rollout, Task

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("task_id", pa.string()),
        ("group", pa.string()),
        ("index", pa.int32()),
        ("source", pa.string()),
        ("prompt", pa.string()),
        ("answer", pa.string()),
        ("text", pa.string()),
        ("messages", pa.string()),
        ("reward", pa.float64()),
        ("reward_parts", pa.map_(pa.string(), pa.float64())),
        ("status", pa.string()),
        ("error", pa.string()),
        ("turns", pa.int32()),
        ("response_tokens", pa.int32()),
        ("versions", pa.list_(pa.int32())),
    ]
)
"""`answer` is text, or JSON where a task's answer is not; `messages` is JSON, null where the answer is all
that was said; a broken rollout's `reward` is null."""


def write_rollouts(path: Path, step: int, groups: Sequence[Group]) -> None:
    """Write all rollouts of some groups, so that the file is whole or not there."""
    rows = [row for group in groups for row in _rows(step, group)]
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.tmp")
    try:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), beside, compression="zstd")
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def prompt_text(task: Task) -> str:
    """A task's messages as one text: a lone user message as it is, else each under its role."""
    if len(task.messages) == 1 and task.messages[0].get("role") in ("user", "", None):
        return _plain(task.messages[0].get("content"))
    return conversation_text(task.messages)


def conversation_text(messages: Sequence[Message]) -> str:
    """Messages as one text, each under its role."""
    return "\n\n".join(f"[{m.get('role', '')}]\n{_plain(m.get('content'))}" for m in messages)


def _rows(step: int, group: Group) -> Iterator[dict[str, Any]]:
    task = group.task
    for rollout in group.rollouts:
        yield {
            "step": step,
            "task_id": task.id,
            "group": group.id,
            "index": rollout.index,
            "source": task.source,
            "prompt": prompt_text(task),
            "answer": None if task.answer is None else _plain(task.answer),
            "text": rollout.text,
            "messages": _plain(rollout.messages) if rollout.messages else None,
            "reward": rollout.reward,
            "reward_parts": list(rollout.reward_parts.items()),
            "status": rollout.status,
            "error": rollout.error,
            "turns": len(rollout.turns),
            "response_tokens": _response_tokens(rollout),
            "versions": list(rollout.versions),
        }


def _response_tokens(rollout: Rollout) -> int:
    return sum(len(turn.completion_ids) for turn in rollout.turns)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
