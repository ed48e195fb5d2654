"""Tasks that others put into a table while the run goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from strop.buffer.wait import Wait, never_stop
from strop.config.redact import redact_text
from strop.config.schema import Run
from strop.config.schema import data as schema
from strop.data.chat import PromptEncoder
from strop.data.database import is_database, read_rows_from
from strop.data.overlong import fit
from strop.data.rows import Records
from strop.data.taskset import to_prompt, to_task
from strop.errors import DataError
from strop.run.length import length_of
from strop.types import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TaskQueue:
    """First in, first out, each task once; `position` alone says where it stands.

    Consumes    the table's rows, from row `position` on.
    Waits for   a step's worth of them, and for a database that has gone away.
    Unblocked   by whoever fills the table; after `queue.timeout_seconds` it is an error.
    """

    def __init__(self, run: Run, queue: schema.TaskQueue, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises `DataError` for a table that is not there; it may be empty."""
        section = run.data.train
        assert isinstance(section.path, str)
        self._shown = f"{redact_text(section.path)}, table {section.table}"
        if not is_database(section.path):
            raise DataError(
                f"data.queue: {section.path} is no database. A queue of tasks is a table, such as "
                "`path: sqlite:///tasks.db`, `table: tasks`."
            )
        read_rows_from(section.path, section.table, first=0, count=1)
        self.position = 0
        """Rows gone past since the start: taken, or left out because they are too long."""
        self._section = section
        self._data = run.data
        self._encoder = PromptEncoder(tokenizer, run.data.chat_template)
        self._steps = length_of(run, 1).steps
        self._timeout_seconds = queue.timeout_seconds
        self._wait: Wait | None = None

    def __str__(self) -> str:
        return f"train: a queue, {self._shown}"

    @property
    def contents(self) -> str:
        """Which table it is."""
        return f"the queue {self._section.table}"

    def steps_per_epoch(self, _n: int) -> int:
        """The run's steps: it sees no task twice."""
        return self._steps

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks, or none after a second in which they have not all come.

        Raises `DataError` once that has lasted too long, and for a row that lacks a column or, under
        `overlong: error`, is too long.
        """
        tasks: list[Task] = []
        first = self.position
        while len(tasks) < n:
            wanted = n - len(tasks)
            try:
                rows = self._read(first, wanted)
            except DataError as error:
                return self._none_yet(str(error))
            if len(rows) < wanted:
                return self._none_yet(f"{len(tasks) + len(rows)} of {n} are there")
            tasks += self._fitting(rows, first)
            first += wanted
        self.position, self._wait = first, None
        return tasks

    def _read(self, first: int, count: int) -> Records:
        assert isinstance(self._section.path, str)
        return read_rows_from(self._section.path, self._section.table, first=first, count=count)

    def _fitting(self, rows: Records, first: int) -> list[Task]:
        """Those whose prompts are short enough, or were cut."""
        section, rule, limit = self._section, self._data.overlong, self._data.max_prompt_tokens
        prompts = self._encoder.encode_all(
            [to_prompt(rows[index], rows.where(index), section) for index in range(len(rows))]
        )
        kept = [i for i, prompt in enumerate(prompts) if rule != "filter" or len(prompt) <= limit]
        fitted = fit((prompts[i] for i in kept), rule, limit, lambda number: rows.where(kept[number]))
        return [
            to_task(f"train:{first + index}", rows[index], rows.where(index), section, prompt)
            for index, prompt in zip(kept, fitted.prompts, strict=True)
        ]

    def _none_yet(self, why: str) -> list[Task]:
        self._wait = self._wait or Wait(self._timeout_seconds, never_stop)
        if self._wait.left <= 0:
            raise DataError(
                f"The queue of tasks ({self._shown}) has not filled a step in {self._wait.seconds:.0f} s: "
                f"{why}. Is what fills it at work? The same command goes on from the last checkpoint; set "
                "data.queue.timeout_seconds higher where tasks take that long to come."
            )
        time.sleep(self._wait.slice(f"tasks in {self._shown} ({why})"))
        return []
