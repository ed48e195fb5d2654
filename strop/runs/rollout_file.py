"""Rollouts as Parquet: one row per rollout with prompt, response, reward and status."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strop.config.redact import safe_text
from strop.data.images.messages import content_text
from strop.errors import RunFolderError
from strop.printable import encodable
from strop.runs.folder import RunFolder
from strop.types import FloatArray, ImageReference, Message, Rollout, RolloutGroup, Task
from strop.workers.files import atomic_path, is_regular

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
        ("images", pa.list_(pa.string())),
        ("model_prompt", pa.string()),
    ]
)
"""Columns of a rollout file. `answer` is text, or JSON if the task's answer is not text; `messages` is JSON,
and null if `text` is the complete conversation; `reward` is null for a failed rollout. `images` are those of the
prompt, as names of files in the run's folder `images`. `prompt` is the task's, and `model_prompt` the input of the
first turn as the model read it, with what the workflow and the template added and what was truncated; null where no
turn began. Files of older versions lack one or both of the last two columns."""
DecodePrompt = Callable[[list[int]], str | list[str]]
"""Text of the tokens of a prompt, as a tokenizer's `decode`, which gives a list only for several prompts."""

TOKEN_COLUMNS = (
    pa.field("token_ids", pa.list_(pa.int32())),
    pa.field("token_logprobs", pa.list_(pa.float32())),
    pa.field("token_advantages", pa.list_(pa.float32())),
)
"""Further columns under `record.rollout_tokens`: sampled tokens of all turns, their log-probs under the sampling
distribution, and their advantages, null where the rollout was not trained on or another process trains."""
RolloutAdvantages = Mapping[tuple[str, int], FloatArray]
"""Advantages of the sampled tokens of rollouts, by group and index."""
_ROW_GROUP = 256
"""Rollouts of a row group, the part of a file that is read at once."""


def rollout_path(folder: Path, step: int) -> Path:
    """Return the path of a step's rollout file."""
    return folder / f"step-{step:06d}.parquet"


def delete_rollouts_after(folder: RunFolder, step: int) -> None:
    """Delete the rollout files of all steps after `step`, of training and of evaluations."""
    for path in rollout_files(folder):
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()


def rollout_files(folder: RunFolder) -> list[Path]:
    """List the rollout files of training steps and of evaluations."""
    found = (*folder.rollouts.glob("step-*.parquet"), *folder.path.glob("eval/*/step-*.parquet"))
    return sorted(path for path in found if path.stem.removeprefix("step-").isdigit() and is_regular(path))


def damaged_rollout_files(folder: RunFolder) -> list[Path]:
    """List the rollout files that are incomplete or no Parquet files."""
    return [path for path in rollout_files(folder) if not is_readable(path)]


def is_readable(path: Path) -> bool:
    """Whether the end of a rollout file, which describes its contents, can be read."""
    if not is_regular(path):
        return False
    try:
        pq.read_metadata(path)
    except (OSError, UnicodeDecodeError, pa.ArrowException):
        return False
    return True


def write_rollouts(
    path: Path,
    step: int,
    groups: Sequence[RolloutGroup],
    *,
    tokens: bool = False,
    advantages: RolloutAdvantages | None = None,
    decode: DecodePrompt | None = None,
) -> None:
    """Write the rollouts of several groups, with their tokens under `tokens`. The file is complete when it appears.

    Without `decode`, the file has no text of the prompts that the model read.
    """
    rows = [row for group in groups for row in _rows(step, group, decode)]
    schema = SCHEMA
    if tokens:
        sampled = (rollout for group in groups for rollout in group.rollouts)
        rows = [row | _token_values(one, advantages or {}) for row, one in zip(rows, sampled, strict=True)]
        schema = pa.schema([*SCHEMA, *TOKEN_COLUMNS])
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        table = pa.Table.from_pylist(rows, schema=schema)
        pq.write_table(table, temporary, compression="zstd", row_group_size=_ROW_GROUP)


def read_rollouts(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a rollout file. Raises `RunFolderError` for a file without the columns of one, or with values
    that cannot be read."""
    try:
        table = pq.read_table(path)
        table.validate(full=True)
        if missing := [field.name for field in SCHEMA if field.name not in (*table.column_names, "images")]:
            raise pa.ArrowInvalid(f"it has no column {missing[0]}")
        types = {field.name: field.type for field in SCHEMA}
        fields = [(field.name, types.get(field.name, field.type)) for field in table.schema]
        rows: list[dict[str, Any]] = table.cast(pa.schema(fields)).to_pylist()
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise RunFolderError(
            f"{path} is not a file of rollouts ({' '.join(str(error).split()).rstrip('.')}). Move it away; the run's "
            "checkpoints do not depend on it."
        ) from None
    return rows


def prompt_text(task: Task) -> str:
    """Format a task's messages as text: a single user message without a heading, others under their roles."""
    if len(task.messages) == 1 and task.messages[0].get("role") in ("user", "", None):
        return _as_text(content_text(task.messages[0].get("content")))
    return conversation_text(task.messages)


def conversation_text(messages: Sequence[Message]) -> str:
    """Format messages as text, each under its role."""
    return "\n\n".join(f"[{m.get('role', '')}]\n{_as_text(content_text(m.get('content')))}" for m in messages)


def _rows(step: int, group: RolloutGroup, decode: DecodePrompt | None) -> Iterator[dict[str, Any]]:
    task = group.task
    decoded: dict[bytes, str] = {}  # the rollouts of a group have one prompt, or few

    def model_prompt(rollout: Rollout) -> str | None:
        if decode is None or not rollout.turns:
            return None
        ids = rollout.turns[0].prompt_ids
        if (key := ids.tobytes()) not in decoded:
            decoded[key] = encodable(str(decode(ids.tolist())))
        return decoded[key]

    for rollout in group.rollouts:
        yield {
            "step": step,
            "task_id": task.id,
            "group": group.id,
            "index": rollout.index,
            "source": task.source,
            "prompt": prompt_text(task),
            "answer": None if task.answer is None else _as_text(task.answer),
            "text": encodable(rollout.text),
            "messages": _as_text(rollout.messages) if rollout.messages else None,
            "reward": rollout.reward,
            "reward_parts": list(rollout.reward_parts.items()),
            "status": rollout.status,
            "error": None if rollout.error is None else safe_text(rollout.error),
            "turns": len(rollout.turns),
            "response_tokens": sum(len(turn.completion_ids) for turn in rollout.turns),
            "versions": list(rollout.versions),
            "images": _images(task, rollout),
            "model_prompt": model_prompt(rollout),
        }


def _token_values(rollout: Rollout, advantages: RolloutAdvantages) -> dict[str, Any]:
    """Sampled tokens of all turns. Advantages are left out where the training sequences have other tokens."""
    ids = [int(token) for turn in rollout.turns for token in turn.completion_ids]
    found = advantages.get((rollout.group, rollout.index))
    return {
        "token_ids": ids,
        "token_logprobs": [float(value) for turn in rollout.turns for value in turn.sampler_logprobs],
        "token_advantages": None if found is None or len(found) != len(ids) else found.tolist(),
    }


def _images(task: Task, rollout: Rollout) -> list[str]:
    """Names of the prompt's images, then of those that later turns brought, each once."""
    media = itertools.chain(task.media, *(turn.media for turn in rollout.turns))
    return list(dict.fromkeys(image.path.name for image in media))


def _as_text(value: Any) -> str:
    return encodable(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_json_value)
    )


def _json_value(value: Any) -> str:
    return value.path.name if isinstance(value, ImageReference) else str(value)
