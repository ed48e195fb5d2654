"""Solved examples in front of a prompt: `few_shot` of a taskset."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from strop.config.paths import existing_path
from strop.config.schema.data import FewShotConfig, TasksetConfig
from strop.data.encoding.messages import to_messages
from strop.data.prompt_columns import prompt_columns, prompt_value
from strop.data.sources.columns import messages_at
from strop.data.sources.reader import read_rows
from strop.errors import DataError
from strop.types import Message

Example = tuple[tuple[Message, ...], str]
"""Prompt and answer of a solved example."""


def with_examples(
    messages: tuple[Message, ...], section: FewShotConfig | None, where: str
) -> tuple[Message, ...]:
    """A prompt with the examples of its taskset. An example with the same prompt is left out, and the next one used.

    Raises `DataError` for examples that cannot be read, and for a prompt that the examples' text cannot precede.
    """
    if section is None:
        return messages
    lead = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    asked = messages[lead:]
    chosen = [each for each in read_examples(section) if each[0] != asked][: section.count]
    if section.text is None:
        turns = tuple(
            turn for prompt, answer in chosen for turn in (*prompt, {"role": "assistant", "content": answer})
        )
        return (*messages[:lead], *turns, *asked)
    text = "".join(_text(section.text, prompt, answer) for prompt, answer in chosen)
    return (*messages[:lead], *_after_text(text, asked, where))


def read_examples(section: FewShotConfig) -> tuple[Example, ...]:
    """The first `count` examples and one more, with which a row replaces itself. Raises `DataError`."""
    file = existing_path(section.path)
    return _read(section.model_dump_json(), 0 if file is None else file.stat().st_mtime_ns)


@lru_cache(maxsize=16)
def _read(settings: str, version: int) -> tuple[Example, ...]:
    """The examples of settings as JSON; `version` is the file's time of modification."""
    section = FewShotConfig.model_validate_json(settings)
    source = {"path": section.path, "split": section.split, "subset": section.subset}
    taskset = TasksetConfig(**source, prompt=section.prompt, response=section.answer)
    rows = read_rows(taskset)
    scanned = islice(rows.scan([*prompt_columns(taskset), section.answer]), section.count + 1)
    found = [_example(row, rows.where(number), taskset, section.answer) for number, row in enumerate(scanned)]
    if len(found) < section.count:
        raise DataError(
            f"few_shot: {section.path} has {len(found)} rows, fewer than count ({section.count}). "
            "Write a smaller count."
        )
    return tuple(found)


def _example(row: Mapping[str, Any], where: str, taskset: TasksetConfig, column: str) -> Example:
    answer = messages_at(row, column, where)
    if not isinstance(answer, str):
        raise DataError(f"{where}: the answer of an example, column {column!r}, is {answer!r} and not text.")
    return to_messages(prompt_value(row, where, taskset), where), answer


def _text(template: str, prompt: Sequence[Message], answer: str) -> str:
    content = prompt[0]["content"] if len(prompt) == 1 else None
    if not isinstance(content, str):
        raise DataError(
            "few_shot.text needs examples whose prompts are text; remove few_shot.text for turns."
        )
    values = {"{prompt}": content, "{answer}": answer}
    return re.sub(r"\{prompt\}|\{answer\}", lambda found: values[found[0]], template)


def _after_text(text: str, asked: tuple[Message, ...], where: str) -> tuple[Message, ...]:
    """The messages with a text at the beginning of the first one."""
    if not asked or asked[0]["role"] != "user":
        raise DataError(
            f"{where}: few_shot.text precedes the first user message, and this prompt begins with none."
        )
    content = asked[0]["content"]
    extended = text + content if isinstance(content, str) else [{"type": "text", "text": text}, *content]
    return ({**asked[0], "content": extended}, *asked[1:])
