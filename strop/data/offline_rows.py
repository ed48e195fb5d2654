"""Conversations of rows with demonstrations or preferences.

An answer column holds text, messages that continue the prompt (the first is the assistant's), or a whole conversation,
in which case the prompt column is not read. JSON text of messages counts as messages, and one message as a list of it.
Two texts of a pair without a prompt begin with it, where text is encoded without a template.

A turn's mark is OpenAI's `weight` (0 or 1), ms-swift's `loss`, axolotl's `train` and `training`, or slime's
`step_loss_mask`. For all of them an assistant turn without a mark is trained on; a row that marks some of its turns as
trained and says nothing about others does not say which is meant, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strop.config.schema.data import DataConfig, TasksetConfig
from strop.data.encoding.conversation_encoder import EncodedSequence, TrainingConversation
from strop.data.encoding.messages import messages_in_text, to_messages, to_tools
from strop.data.images.prompt_images import RowImages
from strop.data.prompt_columns import prompt_value
from strop.data.row_keys import RowKeys
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
from strop.types import ExperienceGroup, Message, SegmentRole


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


_PAIRS_PER_BLOCK = 1000
"""Number of pairs whose chosen responses stand before all their rejected ones, so that two answers to one prompt are
rarely neighbors. TRL (trl/data_utils.py, unpair_preference_dataset) does so too: `datasets` maps 1000 rows at once."""
LOSS_MARKS = (
    *("weight", "loss", "train", "training", "trainable", "train_on_turn", "loss_mask", "step_loss_mask"),
)
_PARTIAL_MARKS = ("train_detail", "training_detail")
"""Axolotl's marks on parts of a message."""


def read_labels(rows: DatasetRows, section: TasksetConfig) -> list[bool] | None:
    """The label of every row; None for a taskset without labels. Raises `DataError` for a row without one."""
    column = section.label
    if column is None or section.steps is not None:
        return None
    return [
        _label(value_at(row, column, rows.where(number)), column, rows.where(number))
        for number, row in enumerate(rows.scan([column]))
    ]


def _label(value: Any, column: str, where: str) -> bool:
    if isinstance(value, bool | int | float) and value in (0, 1):
        return bool(value)
    raise DataError(
        f"{where}: the label in the column {column!r} is {value!r:.60}; write true for a desirable and false for an "
        "undesirable response, or 1 and 0. Remove rows without a label."
    )


def step_labels(row: Mapping[str, Any], section: TasksetConfig, where: str) -> tuple[float, ...]:
    """1 for each correct step of a row, 0 for each other. Raises `DataError` for steps without a label each."""
    assert section.label is not None and section.steps is not None
    labels, steps = value_at(row, section.label, where), value_at(row, section.steps, where)
    if not isinstance(labels, list) or any(label not in (0, 1) for label in labels):
        raise DataError(
            f"{where}: the labels of steps in the column {section.label!r} are {labels!r:.60}; write a list with true "
            "for each correct step and false for each other, or 1 and 0."
        )
    if len(labels) != len(steps):
        raise DataError(
            f"{where}: {len(steps)} steps in the column {section.steps!r} have {len(labels)} labels in "
            f"{section.label!r}; write one for each step, or remove the row."
        )
    return tuple(map(float, labels))


def contradictions(
    encoded: Sequence[Sequence[EncodedSequence]], labels: Sequence[bool | None]
) -> dict[int, int]:
    """Positions of rows whose sequence also has the other label, each with the first such position."""
    by_content: dict[tuple[object, ...], list[int]] = {}
    for position, (one, *_) in enumerate(encoded):
        if labels[position] is not None:
            key = (one.token_ids.tobytes(), one.loss_mask.tobytes(), one.media)
            by_content.setdefault(key, []).append(position)
    found: dict[int, int] = {}
    for positions in by_content.values():
        first = {
            label: position for position in reversed(positions) if (label := labels[position]) is not None
        }
        if len(first) == 2:
            found |= {position: first[not labels[position]] for position in positions}
    return dict(sorted(found.items()))


def unpair(groups: Sequence[ExperienceGroup]) -> list[tuple[int, ExperienceGroup]]:
    """A desirable and an undesirable row for each pair, with the number of its group."""
    found = []
    for first in range(0, len(groups), _PAIRS_PER_BLOCK):
        block = range(first, min(first + _PAIRS_PER_BLOCK, len(groups)))
        sides: tuple[SegmentRole, ...] = ("desirable", "undesirable")
        for side, role in enumerate(sides):
            for number in block:
                experience = replace(groups[number].experiences[side], role=role, pair=None)
                found.append((number, ExperienceGroup(experience.id, (experience,))))
    return found


def row_target(row: Mapping[str, Any], section: TasksetConfig, where: str) -> float:
    """The score of a row's response, or the margin of its pair, which is 0 without a column.

    Raises `DataError` for a value that is no finite number.
    """
    column = section.score if section.chosen is None else section.margin
    if column is None:
        return 0.0
    value = value_at(row, column, where)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    what = "score" if section.chosen is None else "margin"
    raise DataError(
        f"{where}: the {what} in the column {column!r} is {value!r:.60}; write a finite number. Remove rows without a "
        f"{what}."
    )


def take_marks(
    messages: Sequence[Message], first: int, where: str, *, only_last: bool
) -> tuple[tuple[Message, ...], frozenset[int]]:
    """The messages without marks, and the indices of assistant turns from `first` on that are not trained on.

    `only_last` says that the run file trains only the last turn. Raises `DataError` for a mark that cannot be honored.
    """
    if not any(len(message) > 2 for message in messages):
        return tuple(messages), frozenset()
    marks = {i: mark for i, m in enumerate(messages) if (mark := _mark(m, f"{where}, message {i + 1}"))}
    if not marks:
        return tuple(messages), frozenset()
    turns = [i for i, message in enumerate(messages) if i >= first and message["role"] == "assistant"]
    for i, (key, trained) in marks.items():
        if trained and i not in turns:
            raise DataError(f"{where}, message {i + 1}{_why_not(messages[i], key, only_last=only_last)}")
    unmarked = [i for i in turns if i not in marks]
    chosen = next((i for i in turns if i in marks and marks[i][1]), None)
    if unmarked and chosen is not None:
        key = marks[chosen][0]
        raise DataError(
            f"{where}: message {chosen + 1} has {key}: {messages[chosen][key]!r}, and message {unmarked[0] + 1}, also "
            f"of the assistant, has no mark. Write {key} in both, or mark only those that are not trained on."
        )
    plain = tuple({key: value for key, value in m.items() if key not in LOSS_MARKS} for m in messages)
    return plain, frozenset(i for i in turns if i in marks and not marks[i][1])


def _mark(message: Message, where: str) -> tuple[str, bool] | None:
    """The first mark of a message, and whether it asks for training; None without one."""
    for key in _PARTIAL_MARKS:
        if key in message:
            raise DataError(
                f"{where} has {key}, which marks parts of a message; Strop trains on whole messages or not at all. "
                "Remove it, or write train: true or false."
            )
    found: dict[str, bool] = {}
    for key in LOSS_MARKS:
        if key in message:
            found[key] = _as_bool(message[key], key, where)
    if len({*found.values()}) > 1:
        shown = ", ".join(f"{key}: {message[key]!r}" for key in found)
        raise DataError(f"{where} has marks that contradict each other ({shown}). Write one of them.")
    return next(iter(found.items()), None)


def _as_bool(value: Any, key: str, where: str) -> bool:
    if value in (0, 1):
        return bool(value)
    raise DataError(
        f"{where} has {key}: {value!r:.60}, and a message is trained on or not. Write true or false (1 or 0), or "
        f"remove {key}."
    )


def _why_not(message: Message, key: str, *, only_last: bool) -> str:
    shown = f"of the role {message['role']!r} has {key}: {message[key]!r}"
    if message["role"] != "assistant":
        return f", {shown}, but only turns of the assistant are trained on. Write {key}: {_same(message[key], False)}."
    if only_last:
        return (
            f", {shown}, but trained_turns: last trains on the last turn alone. Remove trained_turns, or write "
            f"{key}: {_same(message[key], False)}."
        )
    return (
        f", {shown}, but it belongs to the prompt, which is not trained on. Write {key}: "
        f"{_same(message[key], False)}, or the whole conversation in the response column."
    )


def _same(value: Any, meant: bool) -> str:
    """A mark in the type of another one, as JSON."""
    return str(meant).lower() if isinstance(value, bool) else str(int(meant))
