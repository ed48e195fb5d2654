"""Training tasks from a database table that other programs fill during the run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from strop.config.redact import redact_text
from strop.config.schema import Run
from strop.config.schema import data as schema
from strop.data.encoding.chat_template import PromptEncoder
from strop.data.encoding.truncation import fit_prompts
from strop.data.images.prompt_images import RunImages
from strop.data.images.row_images import read_row_images
from strop.data.prompt_check import to_prompt
from strop.data.sources.rows import DatasetRows, InMemoryRows
from strop.data.sources.sql_table import read_table_slice, require_queue_url
from strop.data.taskset import to_task
from strop.errors import DataError
from strop.run.rollout.row_operators import RowOperators
from strop.run.state.horizon import compute_horizon
from strop.run.tokenizer import load_training_tokens
from strop.types import RolloutGroup, Task
from strop.workers.waiting import TimedWait, never_stop

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TaskQueue:
    """First-in, first-out source of tasks, each taken once; `position` is its entire state.

    Consumes    the table's rows, from row `position` on, through the operators of `data.pipeline`.
    Waits for   a step's worth of rows, and for a database that is temporarily unreachable.
    Unblocked   by the program that fills the table; after `queue.timeout_seconds` it raises an error.
    """

    def __init__(
        self,
        run: Run,
        queue: schema.TaskQueueConfig,
        tokenizer: PreTrainedTokenizerBase,
        images: RunImages | None = None,
    ) -> None:
        """Raises `DataError` if the table does not exist; it may be empty. Raises `ConfigError` for an operator that
        cannot be made."""
        section = run.data.train
        assert isinstance(section.path, str)
        self._shown = f"{redact_text(section.path)}, table {section.table}"
        require_queue_url(section.path)
        read_table_slice(section.path, section.table, first=0, count=1)
        self.position = 0
        """Number of rows read since the start, those filtered for their length included."""
        self._section = section
        self._data = run.data
        self._images = images
        processor = None if images is None else images.processor
        self._encoder = PromptEncoder.of(tokenizer, run.data, processor, load_training_tokens(run, tokenizer))
        self._operators = None if run.data.pipeline is None else RowOperators(run)
        self._steps = compute_horizon(run, 1).steps
        self._timeout_seconds = queue.timeout_seconds
        self._wait: TimedWait | None = None

    def __str__(self) -> str:
        return f"train: a queue, {self._shown}"

    @property
    def order_state(self) -> None:
        """None: the position is the entire state."""
        return None

    def restore(self, position: int, order_state: Mapping[str, Any] | None) -> None:
        """Continue from a saved position."""
        self.position = position

    def observe(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Rows in and out of each operator; results do not change the order of a queue."""
        return {} if self._operators is None else self._operators.take_metrics()

    def notes(self) -> tuple[str, ...]:
        """The queue in one line; its rows are read during the run."""
        return (str(self),)

    @property
    def fingerprint(self) -> str:
        """Identity of the queue: its table."""
        return f"the queue {self._section.table}"

    def sources(self) -> frozenset[str]:
        """None: the rows are not known yet."""
        return frozenset()

    def steps_per_epoch(self, _n: int) -> int:
        """All steps of the run, because each task is taken once."""
        return self._steps

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks; an empty list, after a short sleep, if the table has fewer.

        Raises `DataError` after `queue.timeout_seconds`, and for a row that lacks a column or, under
        `overlong: error`, is too long.
        """
        tasks: list[Task] = []
        first = self.position
        while len(tasks) < n:
            wanted = n - len(tasks)
            try:
                rows = self._read(first, wanted)
            except DataError as error:
                return self._wait_for_rows(str(error))
            if len(rows) < wanted:
                return self._wait_for_rows(f"{len(tasks) + len(rows)} of {n} are in the table")
            tasks += self._tasks_of(rows, first)
            first += wanted
        self.position, self._wait = first, None
        return tasks

    def _read(self, first: int, count: int) -> InMemoryRows:
        assert isinstance(self._section.path, str)
        return read_table_slice(self._section.path, self._section.table, first=first, count=count)

    def _tasks_of(self, rows: InMemoryRows, first: int) -> list[Task]:
        """Tasks of the rows that the operators leave and whose prompts fit, or were truncated to fit."""
        section, rule, limit = self._section, self._data.overlong, self._data.max_prompt_tokens
        names = [f"train:{first + index}" for index in range(len(rows))]
        if self._operators is not None:
            left = self._operators(rows, range(first, first + len(rows)))
            names = [name for name, _ in left]
            rows = InMemoryRows(f"{self._shown}, after data.pipeline:", [row for _, row in left], first)
        row_images = read_row_images(DatasetRows([rows]), section, self._data.images, self._images, "train")
        chats = [
            row_images.place(to_prompt(rows[index], rows.where(index), section), index)
            for index in range(len(rows))
        ]
        prompts = self._encoder.encode_all(chats) if chats else []
        kept = [i for i, prompt in enumerate(prompts) if rule != "filter" or len(prompt) <= limit]
        pad = None if self._images is None else self._images.processor.image_token_id
        fitted = fit_prompts(
            (prompts[i] for i in kept), rule, limit, lambda number: rows.where(kept[number]), pad
        )
        return [
            to_task(names[index], rows[index], chats[index], section, prompt)
            for index, prompt in zip(kept, fitted.prompts, strict=True)
        ]

    def _wait_for_rows(self, why: str) -> list[Task]:
        self._wait = self._wait or TimedWait(self._timeout_seconds, never_stop)
        if self._wait.remaining_seconds <= 0:
            raise DataError(
                f"The task queue ({self._shown}) has not filled a step in "
                f"{self._wait.timeout_seconds:g} s: {why}. Check the program that fills the table. The same "
                "command continues from the last checkpoint; increase data.queue.timeout_seconds if tasks "
                "arrive more slowly."
            )
        time.sleep(self._wait.next_sleep_seconds(f"tasks in {self._shown} ({why})"))
        return []
