"""Tasksets: rows of a dataset as tasks, in an order that a seed determines and one number resumes."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from strop.config.schema.data import DataConfig, EvalTasksetConfig, TasksetConfig
from strop.config.schema.task_order import TaskOrderConfig
from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder, to_messages, to_tools
from strop.data.encoding.parallel_encoding import encode_prompts
from strop.data.encoding.truncation import FittedPrompts, fit_prompts
from strop.data.epoch_order import TaskOrder, TaskOutcome
from strop.data.images.messages import media_of
from strop.data.images.prompt_images import RunImages
from strop.data.images.row_images import RowImages, read_row_images
from strop.data.progress_bar import with_progress_bar
from strop.data.sources.columns import row_tools, system_message, value_at
from strop.data.sources.custom_dataset import CustomDataset
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.data.task_order import make_task_order
from strop.errors import DataError
from strop.types import IntArray, RolloutGroup, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TaskSet:
    """Tasks for training or evaluation, with encoded prompts; other columns are read when a task is taken."""

    def __init__(
        self,
        name: str,
        section: TasksetConfig,
        rows: DatasetRows,
        fitted: FittedPrompts,
        order: TaskOrder,
        row_images: RowImages,
    ) -> None:
        self.name = name
        self.num_overlong = fitted.num_overlong
        """Number of prompts that were too long, and are filtered or truncated."""
        self._section = section
        self._rows = rows
        self._fitted = fitted
        self._order = order
        self._row_images = row_images

    def __len__(self) -> int:
        return len(self._fitted.rows)

    def __str__(self) -> str:
        """`train: 7423 tasks; 50 of 7473 filtered, because their prompts are too long`"""
        text = f"{self.name}: {len(self)} tasks"
        if len(self) < len(self._rows):
            filtered = f"{self.num_overlong} of {len(self._rows)} filtered"
            return f"{text}; {filtered}, because their prompts are too long"
        if self.num_overlong:
            return f"{text}; {self.num_overlong} of them with a truncated prompt"
        return text

    @property
    def fingerprint(self) -> str:
        """`7423 tasks with contents 3f9a61c20d4e`: number and hash of the encoded prompts, in row order."""
        digest = hashlib.sha256()
        for prompt, number in zip(self._fitted.prompts, self._fitted.rows, strict=True):
            digest.update(len(prompt).to_bytes(4, "little") + prompt.tobytes())
            for image in self._row_images.of_column(number) or ():
                digest.update(image.digest.encode())
        return f"{len(self)} tasks with contents {digest.hexdigest()[:12]}"

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
            outcomes.append(TaskOutcome(bisect_left(self._fitted.rows, number), rewards))
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
        return [self._task(index) for index in self._order.take(n).tolist()]

    def all_tasks(self) -> list[Task]:
        """Every task once, in row order; does not change the position."""
        return [self._task(index) for index in range(len(self))]

    def _task(self, index: int) -> Task:
        number = self._fitted.rows[index]
        row, where = self._rows[number], self._rows.where(number)
        prompt = self._row_images.place(to_prompt(row, where, self._section), number)
        return to_task(f"{self.name}:{number}", row, prompt, self._section, self._fitted.prompts[index])


def load_taskset(
    section: TasksetConfig,
    data: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    seed: int,
    shuffle: bool,
    order: TaskOrderConfig | None = None,
    images: RunImages | None = None,
) -> TaskSet:
    """Read a taskset, check every row, store every image and encode every prompt, once.

    `order` is `data.order`; `images` are those of a model that reads images. Raises `DataError` for a dataset that
    cannot be read, for a row that lacks a column or has an image that cannot be used, and for a prompt that is too
    long under `overlong: error`; `ModelError` for a tokenizer without a chat template.
    """
    name = section.name if isinstance(section, EvalTasksetConfig) else "train"
    encoded: Iterator[IntArray]
    custom = None if section.dataset is None else CustomDataset(section, tokenizer)
    rows = read_rows(section) if custom is None else custom.rows()
    row_images = read_row_images(rows, section, data.images, images, name)
    if custom is not None and custom.has_prompt_tokens:
        encoded = islice(custom.prompts(), len(rows))
    else:
        processor = None if images is None else images.processor
        encoder = PromptEncoder(tokenizer, data.chat_template, data.chat_template_args, processor)
        encoded = encode_prompts(encoder, _prompts(rows, section, row_images), data.tokenize_workers)
    fitted = fit_prompts(
        with_progress_bar(encoded, len(rows), f"Encoding the prompts of {name}"),
        data.overlong,
        data.max_prompt_tokens,
        rows.where,
        None if images is None else images.processor.image_token_id,
    )
    task_order = make_task_order(
        order, rows, fitted.rows, seed=seed, shuffle=shuffle, incomplete=data.incomplete_batch, name=name
    )
    return TaskSet(name, section, rows, fitted, task_order, row_images)


def check_task_images(section: TasksetConfig, data: DataConfig, images: RunImages | None, name: str) -> None:
    """Read every row's prompt and its images. Raises `DataError` for the first that cannot be used."""
    rows = read_rows(section)
    row_images = read_row_images(rows, section, data.images, images, name)
    paths = (section.prompt, section.tools, section.system_column)
    for number, row in enumerate(rows.scan([path for path in paths if path is not None])):
        row_images.place(to_prompt(row, rows.where(number), section), number)


def to_task(
    task_id: str, row: Mapping[str, Any], prompt: ChatPrompt, section: TasksetConfig, prompt_ids: IntArray
) -> Task:
    """Make a task of a row and its prompt. Raises `DataError` if a column is missing."""
    answer, source = _answer_and_source(row, prompt.where, section)
    extra = {key: value for key, value in row.items() if key not in (section.prompt, section.tools)}
    media = media_of(prompt.messages)
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
        prompt_value=value_at(row, section.prompt, prompt.where),
    )


def _prompts(rows: DatasetRows, section: TasksetConfig, row_images: RowImages) -> Iterator[ChatPrompt]:
    """The prompt of each row; also checks the other columns of the row."""
    paths = (section.prompt, section.tools, section.answer, section.source, section.system_column)
    for number, row in enumerate(rows.scan([path for path in paths if path is not None])):
        where = rows.where(number)
        _answer_and_source(row, where, section)
        yield row_images.place(to_prompt(row, where, section), number)


def to_prompt(row: Mapping[str, Any], where: str, section: TasksetConfig) -> ChatPrompt:
    """The prompt of a row, whose images have no places yet. Raises `DataError` if a column is missing."""
    system = system_message(row, where, section)
    messages = to_messages(value_at(row, section.prompt, where), where, system=system)
    tools = to_tools(row_tools(row, where, section), where)
    return ChatPrompt(where, messages, tools, section.reply_prefix)


def _answer_and_source(row: Mapping[str, Any], where: str, section: TasksetConfig) -> tuple[Any, str]:
    answer = None if section.answer is None else value_at(row, section.answer, where)
    source = "" if section.source is None else value_at(row, section.source, where)
    if not isinstance(source, str):
        raise DataError(f"{where}: the source, column {section.source!r}, is {source!r} and not text.")
    return answer, source
