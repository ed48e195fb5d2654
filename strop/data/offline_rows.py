"""Conversations of rows with demonstrations or preferences.

An answer column holds text, messages that continue the prompt (the first is the assistant's), or a whole conversation,
in which case the prompt column is not read. JSON text of messages counts as messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strop.config.schema.data import TasksetConfig
from strop.data.encoding.conversation_encoder import TrainingConversation
from strop.data.encoding.messages import to_messages, to_tools
from strop.data.images.row_images import RowImages
from strop.data.sources.columns import row_tools, system_message, template_args, value_at
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.types import Message


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """The conversations of a row: one to imitate, or a chosen and a rejected one."""

    where: str
    conversations: tuple[TrainingConversation, ...]


def conversation_rows(
    rows: DatasetRows, section: TasksetConfig, row_images: RowImages
) -> Iterator[ConversationRow]:
    """The conversations of every row, with their images. Raises `DataError` for a row that cannot be used."""
    for number in range(len(rows)):
        row, where = rows[number], rows.where(number)
        if section.chosen is not None and section.rejected is not None:
            conversations = _pair(row, where, section, section.chosen, section.rejected)
        else:
            assert section.response is not None
            conversations = (_answered(row, where, section, section.response),)
        yield ConversationRow(
            where,
            tuple(
                replace(one, messages=row_images.place_in(one.messages, where, number))
                for one in conversations
            ),
        )


def _answered(
    row: Mapping[str, Any], where: str, section: TasksetConfig, column: str
) -> TrainingConversation:
    """The prompt with a column's answer, or the whole conversation that the column holds."""
    value = _messages_in(value_at(row, column, where))
    if value is None or value == "" or value == []:
        raise DataError(f"{where}: the column {column!r} is empty; every row needs an answer in it.")
    tools = to_tools(row_tools(row, where, section), where)
    args = template_args(row, where, section)
    system = system_message(row, where, section)
    if isinstance(value, str):
        answer: tuple[Message, ...] = ({"role": "assistant", "content": value},)
    else:
        answer = to_messages(value, where)
        if answer[0]["role"] != "assistant":
            messages = to_messages(value, where, system=system)
            first = _first_trained(messages, 0, section)
            return TrainingConversation(where, messages, first, tools, args)
    prompt = to_messages(_messages_in(value_at(row, section.prompt, where)), where, system=system)
    messages = (*prompt, *answer)
    first = _first_trained(messages, len(prompt), section)
    return TrainingConversation(where, messages, first, tools, args)


def _first_trained(messages: Sequence[Message], answer_start: int, section: TasksetConfig) -> int:
    """Index of the first message from which on assistant messages are trained on."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return turns[-1] if section.trained_turns == "last" and turns else answer_start


def _messages_in(value: Any) -> Any:
    """The messages of a column that holds them as JSON text; the unchanged value of any other column."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        messages = json.loads(value)
    except (ValueError, RecursionError):
        return value
    is_messages = messages and all(isinstance(m, Mapping) and "role" in m for m in messages)
    return messages if is_messages else value


def _pair(
    row: Mapping[str, Any], where: str, section: TasksetConfig, chosen: str, rejected: str
) -> tuple[TrainingConversation, ...]:
    """The chosen and the rejected conversation; the prompt of whole conversations is what both begin with."""
    better, worse = (_answered(row, where, section, column) for column in (chosen, rejected))
    if better.messages == worse.messages:
        raise DataError(
            f"{where}: {chosen!r} and {rejected!r} are equal; a pair needs two different answers."
        )
    first = better.first_trained_message
    if better.first_trained_message == 0 or worse.first_trained_message == 0:
        first = _common_prefix_length(better.messages, worse.messages)
    if first == 0 or better.messages[:first] != worse.messages[:first]:
        raise DataError(
            f"{where}: {chosen!r} and {rejected!r} are not answers to one prompt. Two whole conversations "
            "must begin with the same messages."
        )
    return tuple(replace(conversation, first_trained_message=first) for conversation in (better, worse))


def _common_prefix_length(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Number of equal messages at the beginning of both."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
