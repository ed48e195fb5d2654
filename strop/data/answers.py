"""Given answers to learn from: each row becomes one training sequence, or a pair of them.

An answer column holds one of three things: text, messages that go on from the prompt (the first is
the assistant's), or a whole conversation; then the prompt column is not read. JSON text of messages
counts as messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.schema.data import Data, EvalTaskset, Taskset
from strop.data.chat import to_messages, to_tools
from strop.data.columns import system_of, value_at
from strop.data.conversation import Conversation, ConversationEncoder, Encoded
from strop.data.order import Order
from strop.data.overlong import Rule
from strop.data.own import OwnDataset
from strop.data.progress import watched
from strop.data.read import read_rows
from strop.data.rows import Rows
from strop.errors import DataError
from strop.types import Experience, ExperienceGroup, Message, Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ROWS_AT_ONCE = 256


class AnswerSet:
    """Given answers, encoded, in an order that a seed fixes and one number resumes."""

    def __init__(self, name: str, groups: Sequence[ExperienceGroup], left_out: int, order: Order) -> None:
        self.name = name
        self.left_out = left_out
        """Rows that were too long."""
        self._groups = tuple(groups)
        self._order = order

    def __len__(self) -> int:
        return len(self._groups)

    def __str__(self) -> str:
        """`train: 17 rows; 2 of 19 left out, they are too long`"""
        text = f"{self.name}: {len(self)} rows"
        if self.left_out:
            return f"{text}; {self.left_out} of {len(self) + self.left_out} left out, they are too long"
        return text

    @property
    def position(self) -> int:
        """Where the order stands: all there is to save, and to set for an exact resume. See `Order`."""
        return self._order.position

    @position.setter
    def position(self, position: int) -> None:
        self._order.position = position

    def afresh(self) -> AnswerSet:
        """The same answers from the beginning, for a second reader."""
        answers = AnswerSet(self.name, self._groups, self.left_out, copy(self._order))
        answers.position = 0
        return answers

    def steps_per_epoch(self, n: int) -> int:
        """Steps of `n` rows in one epoch. Raises `DataError` where that is none."""
        return self._order.steps_per_epoch(n)

    def take(self, n: int) -> list[ExperienceGroup]:
        """The next `n` rows, one group each; fewer only at an epoch's end under `incomplete_batch: keep`."""
        return [self._groups[index] for index in self._order.take(n).tolist()]

    def all(self) -> tuple[ExperienceGroup, ...]:
        """Every row once, in order; moves nothing."""
        return self._groups


@dataclass(frozen=True, slots=True)
class _Row:
    """A row's conversations: one to imitate, or a chosen and a rejected one."""

    where: str
    conversations: tuple[Conversation, ...]


def load_answers(
    section: Taskset, data: Data, tokenizer: PreTrainedTokenizerBase, *, name: str, seed: int, shuffle: bool
) -> AnswerSet:
    """Read, check and encode every row of a taskset that has a column `response`, or `chosen` and `rejected`.

    Raises `DataError`, which names the row, for one that lacks an answer, has no assistant's turn or is
    too long under `overlong: error`; `ModelError` for a tokenizer that cannot be used.
    """
    rows, encoded = _rows_and_answers(section, tokenizer, data.chat_template)
    limit = data.max_prompt_tokens + data.max_response_tokens
    groups, left_out = [], 0
    for number, of_row in enumerate(watched(encoded, len(rows), f"Encoding the answers of {name}")):
        where = rows.where(number)
        fitted = [_fit(one, data.overlong, limit, where) for one in of_row]
        kept = [one for one in fitted if one is not None]
        if len(kept) == len(fitted):
            groups.append(_group(f"{name}:{number}", where, kept))
        else:
            left_out += 1
    if not groups:
        raise DataError(
            f"All {len(rows)} rows of {name} are longer than data.max_prompt_tokens + max_response_tokens "
            f"({limit} tokens), so none is left to learn from. Write a higher limit."
        )
    order = Order(len(groups), seed=seed, shuffle=shuffle, incomplete=data.incomplete_batch, name=name)
    return AnswerSet(name, groups, left_out, order)


def has_answers(section: EvalTaskset) -> bool:
    """Whether a loss can be measured on an eval taskset."""
    return not section.is_sampled


def _rows_and_answers(
    section: Taskset, tokenizer: PreTrainedTokenizerBase, chat_template: str
) -> tuple[Rows, Iterator[list[Encoded]]]:
    """The rows, and of each what it is to learn from: one sequence, or a pair."""
    own = None if section.dataset is None else OwnDataset(section, tokenizer)
    rows = read_rows(section) if own is None else own.rows()
    if own is not None and own.has_answer_tokens:
        return rows, ([one] for one in islice(own.answers(), len(rows)))
    return rows, _encoded(_rows(rows, section), ConversationEncoder(tokenizer, chat_template))


def _encoded(rows: Iterator[_Row], encoder: ConversationEncoder) -> Iterator[list[Encoded]]:
    while chunk := list(islice(rows, _ROWS_AT_ONCE)):
        encoded = iter(encoder.encode_all([c for row in chunk for c in row.conversations]))
        yield from ([next(encoded) for _ in row.conversations] for row in chunk)


def _rows(rows: Rows, section: Taskset) -> Iterator[_Row]:
    for number in range(len(rows)):
        row, where = rows[number], rows.where(number)
        if section.chosen is not None and section.rejected is not None:
            yield _Row(where, _pair(row, where, section, section.chosen, section.rejected))
        else:
            assert section.response is not None
            yield _Row(where, (_answered(row, where, section, section.response),))


def _answered(row: Mapping[str, Any], where: str, section: Taskset, column: str) -> Conversation:
    """A column's answer after its prompt, or the whole conversation that the column holds."""
    value = _messages_in(value_at(row, column, where))
    if value is None or value == "" or value == []:
        raise DataError(f"{where}: the column {column!r} is empty; each row needs an answer there.")
    tools = () if section.tools is None else to_tools(value_at(row, section.tools, where), where)
    system = system_of(row, where, section)
    if isinstance(value, str):
        answer: tuple[Message, ...] = ({"role": "assistant", "content": value},)
    else:
        answer = to_messages(value, where)
        if answer[0]["role"] != "assistant":
            whole = to_messages(value, where, system=system)
            return Conversation(where, whole, _first(whole, 0, section), tools)
    prompt = to_messages(_messages_in(value_at(row, section.prompt, where)), where, system=system)
    whole = (*prompt, *answer)
    return Conversation(where, whole, _first(whole, len(prompt), section), tools)


def _first(messages: Sequence[Message], answer: int, section: Taskset) -> int:
    """From which message on the assistant's are learned; the answer begins at `answer`."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return turns[-1] if section.trained_turns == "last" and turns else answer


def _messages_in(value: Any) -> Any:
    """The messages that a column holds as JSON text, where it does; the value itself otherwise."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        messages = json.loads(value)
    except ValueError:
        return value
    is_messages = messages and all(isinstance(m, Mapping) and "role" in m for m in messages)
    return messages if is_messages else value


def _pair(
    row: Mapping[str, Any], where: str, section: Taskset, chosen: str, rejected: str
) -> tuple[Conversation, ...]:
    """The two answers to one prompt: of whole conversations, to what they have in common."""
    better, worse = (_answered(row, where, section, column) for column in (chosen, rejected))
    if better.messages == worse.messages:
        raise DataError(f"{where}: {chosen!r} and {rejected!r} are the same; there is nothing to learn.")
    first = better.first
    if better.first == 0 or worse.first == 0:
        first = _common(better.messages, worse.messages)
    if first == 0 or better.messages[:first] != worse.messages[:first]:
        raise DataError(
            f"{where}: {chosen!r} and {rejected!r} are not answers to one prompt: as whole conversations "
            "they must begin with the same messages."
        )
    return tuple(Conversation(where, c.messages, first, c.tools) for c in (better, worse))


def _common(first: Sequence[Message], second: Sequence[Message]) -> int:
    """With how many equal messages both begin."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _fit(encoded: Encoded, rule: Rule, limit: int, where: str) -> Encoded | None:
    """Short enough, cut at its end, or None for a row that is left out."""
    if len(encoded.token_ids) <= limit:
        return encoded
    if rule == "filter":
        return None
    if rule == "right":
        shorter = Encoded(encoded.token_ids[:limit], encoded.loss_mask[:limit])
        return shorter if shorter.loss_mask.any() else None
    raise DataError(
        f"{where}: prompt and answer are {len(encoded.token_ids)} tokens long, more than "
        f"data.max_prompt_tokens + max_response_tokens ({limit}). Write a higher limit, or data.overlong: "
        "filter to leave such rows out, or right to cut their end."
    )


def _group(task_id: str, where: str, encoded: Sequence[Encoded]) -> ExperienceGroup:
    if len(encoded) == 1:
        return ExperienceGroup(task_id, (_experience(task_id, 0, encoded[0], "sft"),))
    better = _experience(task_id, 0, encoded[0], "chosen")
    worse = _experience(task_id, 1, encoded[1], "rejected")
    shared = better.prompt_tokens
    if not np.array_equal(better.token_ids[:shared], worse.token_ids[: worse.prompt_tokens]):
        raise DataError(
            f"{where}: the chat template renders the prompt of the chosen and of the rejected answer in "
            "different ways, so they cannot be compared. Name another template under data.chat_template."
        )
    return ExperienceGroup(task_id, (better, worse))


def _experience(task_id: str, index: int, encoded: Encoded, role: Role) -> Experience:
    nothing = np.zeros(len(encoded.token_ids), dtype=np.float32)
    return Experience(
        id=f"{task_id}-{index}",
        task_id=task_id,
        group=task_id,
        index=index,
        turn=0,
        token_ids=encoded.token_ids,
        loss_mask=encoded.loss_mask,
        sampler_logprobs=nothing,
        policy_logprobs=nothing,
        reward=0.0,
        status="ok",
        temperature=1.0,
        versions=(),
        role=role,
        pair=None if role == "sft" else task_id,
    )
