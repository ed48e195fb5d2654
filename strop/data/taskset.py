"""Tasksets: rows become tasks, in an order that a seed fixes and one number resumes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from strop.config.schema.data import Data, EvalTaskset, Taskset
from strop.data.chat import Prompt, PromptEncoder, to_messages, to_tools
from strop.data.columns import system_of, value_at
from strop.data.encode import encode_prompts
from strop.data.order import Order
from strop.data.overlong import Fitted, fit
from strop.data.own import OwnDataset
from strop.data.progress import watched
from strop.data.read import read_rows
from strop.data.rows import Rows
from strop.errors import DataError
from strop.types import Ints, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TaskSet:
    """Tasks to train on or to measure. Their prompts are encoded; all else is read when a task is taken."""

    def __init__(self, name: str, section: Taskset, rows: Rows, fitted: Fitted, order: Order) -> None:
        self.name = name
        self.overlong = fitted.overlong
        """Prompts that were too long, and so are left out or cut."""
        self._section = section
        self._rows = rows
        self._fitted = fitted
        self._order = order

    def __len__(self) -> int:
        return len(self._fitted.rows)

    def __str__(self) -> str:
        """`train: 7423 tasks; 50 of 7473 left out, their prompts are too long`"""
        text = f"{self.name}: {len(self)} tasks"
        if len(self) < len(self._rows):
            return f"{text}; {self.overlong} of {len(self._rows)} left out, their prompts are too long"
        if self.overlong:
            return f"{text}; {self.overlong} of them with a prompt cut to length"
        return text

    @property
    def contents(self) -> str:
        """`7423 tasks with contents 3f9a61c20d4e`, of the encoded prompts in the order of their rows."""
        digest = hashlib.sha256()
        for prompt in self._fitted.prompts:
            digest.update(len(prompt).to_bytes(4, "little") + prompt.tobytes())
        return f"{len(self)} tasks with contents {digest.hexdigest()[:12]}"

    @property
    def position(self) -> int:
        """Where the order stands: all there is to save, and to set for an exact resume. See `Order`."""
        return self._order.position

    @position.setter
    def position(self, position: int) -> None:
        self._order.position = position

    def steps_per_epoch(self, n: int) -> int:
        """Steps of `n` tasks in one epoch. Raises `DataError` where that is none."""
        return self._order.steps_per_epoch(n)

    def take(self, n: int) -> list[Task]:
        """The next step of `n` tasks; fewer only at an epoch's end under `incomplete_batch: keep`.

        Raises `DataError` where no step of that size can be filled.
        """
        return [self._task(index) for index in self._order.take(n).tolist()]

    def all_tasks(self) -> list[Task]:
        """Every task once, in the order of the rows; moves nothing."""
        return [self._task(index) for index in range(len(self))]

    def _task(self, index: int) -> Task:
        number = self._fitted.rows[index]
        return to_task(
            f"{self.name}:{number}",
            self._rows[number],
            self._rows.where(number),
            self._section,
            self._fitted.prompts[index],
        )


def load_taskset(
    section: Taskset, data: Data, tokenizer: PreTrainedTokenizerBase, *, seed: int, shuffle: bool
) -> TaskSet:
    """Read a taskset, check every row and encode every prompt, once.

    Raises `DataError` for what cannot be read, for a row that lacks a column, and for a prompt that is too
    long under `overlong: error`; `ModelError` for a tokenizer without a chat template.
    """
    name = section.name if isinstance(section, EvalTaskset) else "train"
    encoder = PromptEncoder(tokenizer, data.chat_template)
    rows, encoded = _rows_and_prompts(section, encoder, tokenizer, data.overlong_workers)
    fitted = fit(
        watched(encoded, len(rows), f"Encoding the prompts of {name}"),
        data.overlong,
        data.max_prompt_tokens,
        rows.where,
    )
    order = Order(len(fitted.rows), seed=seed, shuffle=shuffle, incomplete=data.incomplete_batch, name=name)
    return TaskSet(name, section, rows, fitted, order)


def _rows_and_prompts(
    section: Taskset, encoder: PromptEncoder, tokenizer: PreTrainedTokenizerBase, workers: int
) -> tuple[Rows, Iterator[Ints]]:
    own = None if section.dataset is None else OwnDataset(section, tokenizer)
    rows = read_rows(section) if own is None else own.rows()
    if own is not None and own.has_prompt_tokens:
        return rows, islice(own.prompts(), len(rows))
    return rows, encode_prompts(encoder, _prompts(rows, section), workers)


def to_task(task_id: str, row: Mapping[str, Any], where: str, section: Taskset, prompt_ids: Ints) -> Task:
    """A row as a task. Raises `DataError` where a column is missing."""
    prompt = to_prompt(row, where, section)
    answer, source = _answer_and_source(row, where, section)
    return Task(
        id=task_id,
        messages=prompt.messages,
        prompt_ids=prompt_ids,
        answer=answer,
        source=source,
        tools=prompt.tools,
        extra={key: value for key, value in row.items() if key not in (section.prompt, section.tools)},
    )


def _prompts(rows: Rows, section: Taskset) -> Iterator[Prompt]:
    """The prompt of each row; the row's other columns are checked on the way."""
    paths = (section.prompt, section.tools, section.answer, section.source, section.system_column)
    for number, row in enumerate(rows.scan([path for path in paths if path is not None])):
        where = rows.where(number)
        _answer_and_source(row, where, section)
        yield to_prompt(row, where, section)


def to_prompt(row: Mapping[str, Any], where: str, section: Taskset) -> Prompt:
    """A row's prompt, not yet encoded. Raises `DataError` where a column is missing."""
    system = system_of(row, where, section)
    messages = to_messages(value_at(row, section.prompt, where), where, system=system)
    tools = () if section.tools is None else to_tools(value_at(row, section.tools, where), where)
    return Prompt(where, messages, tools, section.reply_prefix)


def _answer_and_source(row: Mapping[str, Any], where: str, section: Taskset) -> tuple[Any, str]:
    answer = None if section.answer is None else value_at(row, section.answer, where)
    source = "" if section.source is None else value_at(row, section.source, where)
    if not isinstance(source, str):
        raise DataError(f"{where}: the source, column {section.source!r}, is {source!r} and not text.")
    return answer, source
