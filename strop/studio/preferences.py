"""Preferences between two responses to the same task, as rows of a JSONL file that DPO trains on."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.config.paths import expand_user
from strop.errors import DataError
from strop.runs.folder import RunFolder
from strop.runs.lock import lock_file
from strop.runs.rollout_index import RolloutFilter, RolloutIndex
from strop.studio.files import require_allowed
from strop.studio.settings import StudioSettings
from strop.workers.files import atomic_write, read_regular
from strop.workers.json_text import parse_json, parse_object

_ATTEMPTS = 60
"""Groups that are looked at for two different responses."""
_MOST_RESPONSES = 512
"""Responses of a group among which two are drawn."""
_ROLE = re.compile(r"(?:^|\n\n)\[(system|user|assistant|tool)\]\n")


_changes = threading.Lock()
"""Orders the changes of this process, also where the file system has no locks."""


@dataclass(frozen=True, slots=True)
class ResponsePair:
    """Two responses to the same task, in the order in which they are shown."""

    step: int
    group: str
    first: Mapping[str, Any]
    second: Mapping[str, Any]


def preference_file(name: str, settings: StudioSettings) -> Path:
    """The file of a name that a user writes.

    Raises `DataError` for another ending than .jsonl and for a folder, `ConfigError` outside of Studio's folders.
    """
    path = require_allowed(expand_user(name.strip()), settings)
    if path.suffix != ".jsonl":
        raise DataError(f"{name!r} is not the name of a JSONL file; write one that ends in .jsonl.")
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no file. Write another name.")
    return path


def read_preferences(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; none if it does not exist. Raises `DataError` for one that has other rows."""
    try:
        return _rows(path, read_regular(path)) if path.exists() else []
    except OSError as error:
        raise _unreadable(path, error) from error


def _rows(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The rows of a file's content. An incomplete last line, which a kill has left, is none."""
    *lines, last = content.split(b"\n")  # a response may have any other separator of lines
    try:
        rows = [parse_object(line) for line in lines]
        if last:
            with suppress(ValueError):
                rows.append(parse_object(last))
        if any("chosen" not in row or "rejected" not in row for row in rows):
            raise ValueError("a row has no chosen or no rejected response")
    except ValueError as error:
        raise _unreadable(path, error) from error
    return rows


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} is not a file of preferences ({error}). Write another name.")


def draw_pair(
    index: RolloutIndex, source: str, rated: list[dict[str, Any]], run: str, seed: int
) -> ResponsePair | None:
    """Two different responses of a random group whose preference is not known; None where none is found."""
    draw = random.Random(seed)
    known = {
        (row.get("run"), row.get("step"), row.get("group"), frozenset(row.get("rollouts") or ()))
        for row in rated
    }
    groups = index.groups(source)
    for step, group in draw.sample(groups, min(_ATTEMPTS, len(groups))):
        rows = index.find(
            RolloutFilter(source, step, step, group=group, order="oldest"), 0, _MOST_RESPONSES
        ).rows
        answered = [row for row in rows if row["error"] is None]
        draw.shuffle(answered)
        first = answered[0] if answered else None
        for second in answered[1:]:
            pair = (run, step, group, frozenset({first["index"], second["index"]})) if first else None
            if first and _response(first) != _response(second) and pair not in known:
                return ResponsePair(step, group, first, second)
    return None


def add_preference(
    path: Path, folder: RunFolder, run: str, chosen: Mapping[str, Any], rejected: Mapping[str, Any]
) -> None:
    """Append a row: the prompt, both responses, and the rollouts that they are."""
    row = {
        "prompt": _prompt(str(chosen["prompt"])),
        "chosen": _response(chosen),
        "rejected": _response(rejected),
        **(
            {"images": [str((folder.images / name).resolve()) for name in chosen["images"]]}
            if chosen.get("images")
            else {}
        ),
        "task_id": chosen["task_id"],
        "run": run,
        "step": chosen["step"],
        "group": chosen["group"],
        "rollouts": [chosen["index"], rejected["index"]],
    }
    with _changing(path) as rows:
        rows.append(row)


def remove_preference(path: Path, run: str, step: int, group: str, rollouts: Sequence[int]) -> bool:
    """Remove the last row about two rollouts, the better one first; returns whether there was one."""
    wanted = (run, step, group, [*rollouts])
    with _changing(path) as rows:
        for place in reversed(range(len(rows))):
            row = rows[place]
            if (row.get("run"), row.get("step"), row.get("group"), row.get("rollouts")) == wanted:
                del rows[place]
                return True
    return False


@contextmanager
def _changing(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of a file, which are written when the block ends; other people's changes wait until then."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _changes, _locked(path):
            rows = read_preferences(path)
            yield rows
            atomic_write(path, "".join(map(_line, rows)))
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}.") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is created if there is none; threads and processes wait for each other."""
    while True:
        with path.open("ab") as file:
            lock_file(file.fileno(), fcntl.LOCK_EX)
            try:
                is_current = os.path.samestat(path.stat(), os.fstat(file.fileno()))
            except FileNotFoundError:
                is_current = False
            if is_current:  # else another writer has replaced it, while this one waited
                yield
                return


def _line(row: Mapping[str, Any]) -> str:
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, in a message
        text = json.dumps(row)
    return text + "\n"


def _prompt(text: str) -> str | list[dict[str, str]]:
    """A prompt as it was in the dataset: text of one user message, or messages, which the rollout file has as text."""
    parts = _ROLE.split(text)
    if parts[0] or len(parts) < 3:
        return text
    return [
        {"role": role, "content": content} for role, content in zip(parts[1::2], parts[2::2], strict=True)
    ]


def _response(row: Mapping[str, Any]) -> Any:
    """A response as DPO reads it: text, or the messages of a conversation."""
    return parse_json(row["messages"]) if row.get("messages") else row["text"]


def pairs_run_file(values: Mapping[str, Any], path: Path, rows: int) -> str:
    """Text of a run file that trains the model of another run on the preferences, by DPO."""
    model, data = values.get("model") or {}, values.get("data") or {}
    lengths = {
        key: data[key] for key in ("max_prompt_tokens", "max_response_tokens", "chat_template") if key in data
    }
    settings = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in lengths.items())
    images = ", images: images, optional_columns: [images]" if _has_images(path) else ""
    return (
        "# Direct preference optimization on preferences that Strop Studio collected.\n"
        f"project: {json.dumps(values.get('project', 'strop'))}\n"
        "name: preferences\n"
        f"model: {{path: {json.dumps(model.get('path', ''))}}}\n"
        "data:\n"
        f"  train: {{path: {json.dumps(str(path))}, chosen: chosen, rejected: rejected{images}}}\n"
        f"{settings}"
        "algorithm: {type: dpo, beta: 0.1}\n"
        "trainer:\n"
        "  duration: 1 epochs\n"
        f"  tasks_per_step: {max(1, min(rows, 16))}  # pairs in one step\n"
        "  optimizer: {type: adamw, lr: 1e-6}\n"
    )


def _has_images(path: Path) -> bool:
    return any("images" in row for row in read_preferences(path))
