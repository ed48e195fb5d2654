"""Tasksets: rows of a dataset as tasks, in an order that a seed determines and one number resumes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from strop.config.schema.data import DataConfig, EvalTasksetConfig, TaskOrderConfig, TasksetConfig
from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.messages import messages_in_text
from strop.data.encoding.model_tokens import ModelTokens
from strop.data.encoding.prompt_store import PromptStore
from strop.data.images.messages import media_of
from strop.data.images.prompt_images import RowImages, RunImages, read_row_images
from strop.data.prompt_check import (
    CheckedPrompts,
    answer_and_source,
    check_prompts,
    check_token_prompts,
    to_prompt,
)
from strop.data.prompt_columns import prompt_columns
from strop.data.sources.columns import value_at
from strop.data.sources.custom_dataset import CustomDataset
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.data.task_order import TaskOrder, TaskOutcome, make_task_order
from strop.printable import counted
from strop.types import IntArray, RolloutGroup, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HASHED_PROMPTS = 16
"""Number of prompts whose tokens are a part of a taskset's fingerprint."""


class TaskSet:
    """Tasks for training or evaluation. Rows are read, and prompts encoded, when a task is taken, and ahead of that."""

    def __init__(
        self,
        name: str,
        section: TasksetConfig,
        rows: DatasetRows,
        checked: CheckedPrompts,
        prompts: PromptStore,
        order: TaskOrder,
        row_images: RowImages,
    ) -> None:
        self.name = name
        self.num_overlong = checked.kept.num_overlong
        """Number of prompts that were too long, and are filtered or truncated."""
        self._section = section
        self._rows = rows
        self._numbers = checked.kept.rows
        self._digest = checked.digest
        self._key_notes = checked.notes
        self._prompts = prompts
        self._order = order
        self._row_images = row_images

    def __len__(self) -> int:
        return len(self._numbers)

    def __str__(self) -> str:
        """`train: 7423 tasks; 50 of 7473 filtered, because their prompts are too long`"""
        text = f"{self.name}: {counted(len(self), 'task')}"
        if len(self) < len(self._rows):
            filtered = f"{self.num_overlong} of {len(self._rows)} filtered"
            return f"{text}; {filtered}, because their prompts are too long"
        if self.num_overlong:
            return f"{text}; {self.num_overlong} of them with a truncated prompt"
        return text

    def notes(self) -> Iterator[str]:
        """The taskset in one line, and a line for each kind of key of its rows that is not read."""
        yield str(self)
        yield from (f"{self.name}: {note}" for note in self._key_notes)

    @property
    def fingerprint(self) -> str:
        """`7423 tasks with rows 3f9a61c20d4e`: number of tasks, hash of all prompts and of the first ones' tokens."""
        digest = hashlib.sha256(self._digest.encode() + self._numbers.tobytes())
        for prompt in self._prompts.get(self._numbers[:_HASHED_PROMPTS].tolist()):
            digest.update(len(prompt).to_bytes(4, "little") + prompt.tobytes())
        return f"{len(self)} tasks with rows {digest.hexdigest()[:12]}"

    @property
    def position(self) -> int:
        """Number of tasks passed, over all epochs. Saved and restored, with `order_state`."""
        return self._order.position

    @position.setter
    def position(self, position: int) -> None:
        self._order.position = position

    @property
    def order_state(self) -> Mapping[str, Any] | None:
        """State of an order that follows the results, as JSON values; None for one that `position` determines."""
        return self._order.state

    def restore(self, position: int, order_state: Mapping[str, Any] | None) -> None:
        """Continue from a saved position and `order_state`."""
        self._order.position = position
        if order_state is not None:
            self._order.load_state(order_state)

    def observe(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Report the results of groups of this taskset to its order; returns the order's metrics."""
        outcomes = []
        for group in groups:
            number = int(group.task.id.rpartition(":")[2])
            rewards = tuple(rollout.reward for rollout in group.rollouts if rollout.reward is not None)
            outcomes.append(TaskOutcome(int(np.searchsorted(self._numbers, number)), rewards))
        self._order.observe(outcomes)
        return self._order.metrics()

    def sources(self) -> frozenset[str]:
        """Data sources of the rows; the empty text where no column has them."""
        if self._section.source is None:
            return frozenset({""})
        rows = self._rows.scan([self._section.source])
        return frozenset(value_at(row, self._section.source, self.name) for row in rows)

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` tasks in one epoch. Raises `DataError` if there is none."""
        return self._order.steps_per_epoch(n)

    def take(self, n: int) -> list[Task]:
        """The next step of `n` tasks; fewer only at the end of an epoch with `incomplete_batch: keep`.

        Raises `DataError` if the taskset is too small for a step.
        """
        tasks = self._tasks(self._numbers[self._order.take(n)].tolist())
        self._prompts.prepare(self._numbers[copy(self._order).take(n)].tolist())
        return tasks

    def tasks_at(self, indices: Sequence[int]) -> list[Task]:
        """The tasks at these indices; does not change the position."""
        return self._tasks(self._numbers[[*indices]].tolist())

    def prepare(self, indices: Sequence[int]) -> None:
        """Encode the prompts of these tasks in the background."""
        self._prompts.prepare(self._numbers[[*indices]].tolist())

    def all_tasks(self) -> list[Task]:
        """Every task once, in row order; does not change the position."""
        return self._tasks(self._numbers.tolist())

    def _tasks(self, numbers: Sequence[int]) -> list[Task]:
        return [
            self._task(number, prompt_ids)
            for number, prompt_ids in zip(numbers, self._prompts.get(numbers), strict=True)
        ]

    def _task(self, number: int, prompt_ids: IntArray) -> Task:
        row, where = self._rows[number], self._rows.where(number)
        prompt = self._row_images.place(to_prompt(row, where, self._section), number)
        return to_task(f"{self.name}:{number}", row, prompt, self._section, prompt_ids)


def load_taskset(
    section: TasksetConfig,
    data: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    seed: int,
    shuffle: bool,
    order: TaskOrderConfig | None = None,
    images: RunImages | None = None,
    name: str = "train",
    tokens: ModelTokens | None = None,
) -> TaskSet:
    """Read a taskset and check every row; store every image. Prompts that may be too long are encoded.

    `order` is `data.order`; `images` are those of a model that reads images; `name` is that of a taskset without a name
    of its own; `tokens` are the model's, to refuse prompts with others. Raises `DataError` for a dataset that cannot be
    read, for a row that lacks a column or has an image that cannot be used, and for a prompt that is too long under
    `overlong: error`; `ModelError` for a tokenizer without a chat template.
    """
    name = section.name if isinstance(section, EvalTasksetConfig) else name
    custom = None if section.dataset is None else CustomDataset(section, tokenizer)
    rows = read_rows(section) if custom is None else custom.rows()
    row_images = read_row_images(rows, section, data.images, images, name)

    def read(number: int) -> ChatPrompt:
        return row_images.place(to_prompt(rows[number], rows.where(number), section), number)

    if custom is not None and custom.has_prompt_tokens:
        store = PromptStore(read, None, data.overlong, data.max_prompt_tokens)
        checked = check_token_prompts(rows, custom, data, store, name, tokenizer, tokens)
    else:
        processor = None if images is None else images.processor
        encoder = PromptEncoder.of(tokenizer, data, processor, tokens)
        store = PromptStore(read, encoder, data.overlong, data.max_prompt_tokens)
        checked = check_prompts(rows, section, data, row_images, encoder, store, name)
    task_order = make_task_order(
        order,
        rows,
        checked.kept.rows,
        seed=seed,
        shuffle=shuffle,
        incomplete=data.incomplete_batch,
        name=name,
    )
    return TaskSet(name, section, rows, checked, store, task_order, row_images)


def check_task_images(section: TasksetConfig, data: DataConfig, images: RunImages | None, name: str) -> None:
    """Read every row's prompt and its images. Raises `DataError` for the first that cannot be used."""
    rows = read_rows(section)
    row_images = read_row_images(rows, section, data.images, images, name)
    for number, row in enumerate(rows.scan(prompt_columns(section))):
        row_images.place(to_prompt(row, rows.where(number), section), number)


def to_task(
    task_id: str, row: Mapping[str, Any], prompt: ChatPrompt, section: TasksetConfig, prompt_ids: IntArray
) -> Task:
    """Make a task of a row and its prompt. Raises `DataError` if a column is missing."""
    answer, source = answer_and_source(row, prompt.where, section)
    extra = {key: value for key, value in row.items() if key not in (section.prompt, section.tools)}
    media = media_of(prompt.messages)
    value = value_at(row, section.prompt, prompt.where)
    if section.images in extra:
        extra[section.images] = [str(image.path) for image in media]
    return Task(
        id=task_id,
        messages=prompt.messages,
        prompt_ids=prompt_ids,
        answer=answer,
        source=source,
        media=media,
        tools=prompt.tools,
        extra=extra,
        prompt_value=messages_in_text(value, prompt.where) if isinstance(value, str) else value,
    )
