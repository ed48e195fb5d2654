"""Conversations of rows with demonstrations or preferences.

An answer column holds text, messages that continue the prompt (the first is the assistant's), or a whole conversation,
in which case the prompt column is not read. JSON text of messages counts as messages, and one message as a list of it.
Two texts of a pair without a prompt begin with it, where text is encoded without a template.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.encoding.conversation_encoder import TrainingConversation
from strop.data.encoding.messages import messages_in_text, to_messages, to_tools
from strop.data.images.prompt_images import RowImages
from strop.data.prompt_columns import prompt_value
from strop.data.row_keys import RowKeys
from strop.data.row_labels import take_marks
from strop.data.sources.columns import (
    has_column,
    messages_at,
    row_tools,
    system_message,
    template_args,
    value_at,
)
from strop.data.sources.rows import DatasetRows, Row
from strop.errors import DataError
from strop.types import Message


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """The conversations of a row: one to imitate, or a chosen and a rejected one."""

    where: str
    conversations: tuple[TrainingConversation, ...]


def conversation_rows(
    rows: DatasetRows, section: TasksetConfig, data: DataConfig, row_images: RowImages, keys: RowKeys
) -> Iterator[ConversationRow]:
    """The conversations of every row, with their images; `keys` counts what is not read of the rows.

    Raises `DataError` for a row that cannot be used.
    """
    is_raw = data.text_prompts == "raw" or data.chat_template == "none"
    for number in range(len(rows)):
        row, where = rows[number], rows.where(number)
        if section.chosen is not None and section.rejected is not None:
            columns = (section.chosen, section.rejected)
            has_texts = not has_column(row, section.prompt) and all(
                isinstance(row.get(name), str) for name in columns
            )
            pair = _with_shared_prompt(row, where, section.prompt, columns, is_raw) if has_texts else row
            answers = _pair(pair, where, section, *columns)
        elif section.steps is not None:
            answers = (_stepwise(row, where, section, section.steps),)
        else:
            assert section.response is not None
            answers = (_answered(row, where, section, section.response),)
        keys.add_trained(row, where, reads_prompt=any(answer.has_row_prompt for answer in answers))
        for counted, answer in enumerate(answers):
            one = answer.conversation
            keys.add_messages(one.messages[one.first_trained_message :] if counted else one.messages)
        keys.add_variables(one.tools, one.template_args)
        yield ConversationRow(
            where,
            tuple(
                replace(
                    one.conversation, messages=row_images.place_in(one.conversation.messages, where, number)
                )
                for one in answers
            ),
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """The conversation of an answer column."""

    conversation: TrainingConversation
    has_row_prompt: bool
    """Whether it begins with the row's prompt column; a whole conversation does not."""


def _answered(
    row: Mapping[str, Any],
    where: str,
    section: TasksetConfig,
    column: str,
    other: TrainingConversation | None = None,
) -> _Answer:
    """The prompt with a column's answer, or the whole conversation that the column holds.

    An answer in a row without a prompt column takes the place of the last one of `other`, a whole conversation.
    """
    value = messages_at(row, column, where)
    if value is None or value == "" or value == []:
        raise DataError(f"{where}: the column {column!r} is empty; every row needs an answer in it.")
    tools = to_tools(row_tools(row, where, section), where)
    args = template_args(row, where, section)
    system = system_message(row, where, section)
    if isinstance(value, str):
        answer: tuple[Message, ...] = ({"role": "assistant", "content": value},)
    elif not isinstance(value, Sequence):
        raise DataError(
            f"{where}: the value of the column {column!r} is {value!r:.80}. A response must be plain text, or a list "
            "of messages that ends with the assistant's."
        )
    else:
        answer = to_messages(value, where)
        if answer[0]["role"] != "assistant":
            messages = to_messages(value, where, system=system)
            return _Answer(_trained(TrainingConversation(where, messages, 0, tools, args), section), False)
    is_text = False
    has_row_prompt = other is None or has_column(row, section.prompt)
    if other is not None and not has_row_prompt:
        prompt = other.messages[:-1]
    else:
        asked = prompt_value(row, where, section)
        is_text = isinstance(asked, str)
        prompt = to_messages(asked, where, system=system)
    conversation = TrainingConversation(
        where, (*prompt, *answer), len(prompt), tools, args, prompt_is_text=is_text
    )
    return _Answer(_trained(conversation, section), has_row_prompt)


def _stepwise(row: Row, where: str, section: TasksetConfig, column: str) -> _Answer:
    """The prompt with the steps of a response. Raises `DataError` for a value that is no list of texts."""
    steps = value_at(row, column, where)
    if not isinstance(steps, list) or not steps or not all(isinstance(step, str) and step for step in steps):
        raise DataError(
            f"{where}: the steps in the column {column!r} are {steps!r:.60}; write a list of texts, one for each step, "
            "none of them empty."
        )
    joined = type(row)({**row, column: section.step_separator.join(steps)})
    answer = _answered(joined, where, section, column)
    return replace(answer, conversation=replace(answer.conversation, steps=tuple(steps)))


def _trained(conversation: TrainingConversation, section: TasksetConfig) -> TrainingConversation:
    """The conversation with its trained turns, by `trained_turns` and the marks of its messages."""
    first, only_last = conversation.first_trained_message, section.trained_turns == "last"
    first = _first_trained(conversation.messages, first, section)
    messages, untrained = take_marks(conversation.messages, first, conversation.where, only_last=only_last)
    if section.train_on_prompt and untrained:
        raise DataError(
            f"{conversation.where} marks a message as not trained on, but train_on_prompt trains all of them. Remove "
            "the mark, or train_on_prompt."
        )
    return replace(
        conversation,
        messages=messages,
        first_trained_message=first,
        untrained=untrained,
        trains_prompt=section.train_on_prompt,
    )


def _first_trained(messages: Sequence[Message], answer_start: int, section: TasksetConfig) -> int:
    """Index of the first message from which on assistant messages are trained on."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return turns[-1] if section.trained_turns == "last" and turns else answer_start


def _pair(
    row: Mapping[str, Any], where: str, section: TasksetConfig, chosen: str, rejected: str
) -> tuple[_Answer, ...]:
    """The chosen and the rejected conversation; the prompt of whole conversations is what both begin with."""
    answers = [_answered(row, where, section, chosen)]
    answers.append(_answered(row, where, section, rejected, answers[0].conversation))
    better, worse = (answer.conversation for answer in answers)
    first = better.first_trained_message
    if better.first_trained_message == 0 or worse.first_trained_message == 0:
        first = _common_prefix_length(better.messages, worse.messages)
        if better.messages == worse.messages:  # equal, whichever message the answers begin with
            first = better.trained_messages()[-1] if better.trained_messages() else 0
    if first == 0 or better.messages[:first] != worse.messages[:first]:
        raise DataError(
            f"{where}: {chosen!r} and {rejected!r} are not answers to one prompt. Two whole conversations "
            "must begin with the same messages."
        )
    if any(i >= first for conversation in (better, worse) for i in conversation.untrained):
        raise DataError(
            f"{where}: a turn of {chosen!r} or {rejected!r} is marked as not trained on, but a pair compares whole "
            "answers. Remove the mark."
        )
    return tuple(
        replace(
            answer,
            conversation=replace(answer.conversation, first_trained_message=first, untrained=frozenset()),
        )
        for answer in answers
    )


def _with_shared_prompt(row: Row, where: str, prompt: str, columns: tuple[str, str], is_raw: bool) -> Row:
    """The row with the beginning that two texts share as its prompt; a space before the answers belongs to them, as
    in TRL (trl/data_utils.py, extract_prompt). JSON text of messages is left as it is."""
    values = [messages_in_text(row[column], where) for column in columns]
    if not all(isinstance(value, str) for value in values):
        return row
    if not is_raw:
        raise DataError(
            f"{where} has no column {prompt!r}, and {columns[0]!r} and {columns[1]!r} are text. Name the prompt under "
            "data.train.prompt, or write data.text_prompts: raw, under which the beginning that both texts "
            "share is the prompt, and no chat template is rendered."
        )
    better, worse = values
    shared = _common_prefix_length(better, worse)
    shared -= shared > 0 and better[shared - 1] == " "
    if shared in (0, len(better), len(worse)):
        raise DataError(
            f"{where}: {columns[0]!r} and {columns[1]!r} have no prompt that they share and two answers after it."
        )
    answers = {prompt: better[:shared], columns[0]: better[shared:], columns[1]: worse[shared:]}
    return type(row)({**row, **answers})


def _common_prefix_length(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Number of equal messages, or characters, at the beginning of both."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
