"""Tasks of a run: tasksets, a table that other programs fill, a stream, and operators on rows read during the run."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from strop.config.redact import redact_text
from strop.config.schema import data as schema
from strop.config.schema.data import EvalTasksetConfig, StreamConfig
from strop.config.schema.run import Run
from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.model_tokens import ModelTokens
from strop.data.encoding.truncation import fit_prompts
from strop.data.images.prompt_images import RunImages, read_row_images
from strop.data.mixture import MixedTaskSet, run_mixture_order
from strop.data.offline_dataset import OfflineDataset, load_offline_dataset
from strop.data.prompt_check import to_prompt
from strop.data.sources.columns import TableRow
from strop.data.sources.reader import stream_rows
from strop.data.sources.rows import DatasetRows, InMemoryRows, LocatedRows, Row, RowSource
from strop.data.sources.sql_table import read_table_slice, require_queue_url
from strop.data.task_order import epoch_permutation
from strop.data.taskset import TaskSet, load_taskset, to_task
from strop.errors import DataError
from strop.pipelines.tasks.execution import PartRunner, Stage, named_operators
from strop.pipelines.tasks.operator import ROW_ID, to_table, with_column
from strop.pipelines.tasks.registry import OperatorContext
from strop.rewards.judges.chat_client import JudgeCache
from strop.run.prepared_data import data_notes, train_section
from strop.run.prompt_images import load_prompt_images
from strop.run.state.horizon import compute_horizon
from strop.run.tokenizer import load_policy_tokens, load_training_tokens
from strop.runs.folder import RunFolder
from strop.seeds import derive_seed
from strop.types import RolloutGroup, Task
from strop.workers.waiting import TimedWait, never_stop

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


log = logging.getLogger("strop.pipelines")


class RowOperators:
    """The operators of a run's pipeline, which see the rows of one read at a time.

    Replies of language models are cached in the run's folder, so that a resumed run has the same rows.
    """

    def __init__(self, run: Run) -> None:
        """Raises ConfigError for an operator that cannot be made."""
        assert run.data.pipeline is not None
        replies = JudgeCache(RunFolder.of(run).judge_cache / "tasks")
        context = OperatorContext(None, replies, log.warning)
        self._operators = named_operators(Stage(0, run.data.pipeline.operators, "rows"), context)
        self._counts: Counter[str] = Counter()

    def __call__(self, rows: RowSource, numbers: Sequence[int]) -> list[tuple[str, Row]]:
        """The rows that are left, with their ids. `numbers` are the rows' numbers in their source; a further row that
        an operator made has the id of the last row before it, and a number.

        Raises DataError for a row that an operator cannot use.
        """
        given = [rows[index] for index in range(len(rows))]
        table = with_column(to_table(given), ROW_ID, pa.array(np.arange(len(given), dtype=np.int64)))
        left, _, statistics = PartRunner(self._operators, [rows.where])(table)
        for named, found in zip(self._operators, statistics, strict=True):
            name = f"{named.number}_{named.type}"
            self._counts.update({f"{name}/rows_in": found.rows_in, f"{name}/rows_out": found.rows_out})
        return list(_identified(left.to_pylist(), numbers))

    def take_metrics(self) -> dict[str, float]:
        """Rows in and out of each operator since the last call."""
        counts, self._counts = self._counts, Counter()
        return {f"task_pipeline/{name}": float(count) for name, count in sorted(counts.items())}


def _identified(rows: Sequence[dict[str, Any]], numbers: Sequence[int]) -> list[tuple[str, Row]]:
    found: list[tuple[str, Row]] = []
    last, further = numbers[0], 0
    known: set[int] = set()
    for row in map(TableRow, rows):
        number = row.pop(ROW_ID)
        if number is not None and number >= 0 and number not in known:
            known.add(number)
            last, further = numbers[number], 0
            found.append((f"train:{last}", row))
        else:
            further += 1
            found.append((f"train:{last}.{further}", row))
    return found


MAX_REJECTED = 10_000
"""Largest number of rows without a task, one after the other."""


class _OpenTasks:
    """Tasks of rows that are read while the run goes on; the position is the entire state."""

    def __init__(
        self, run: Run, tokenizer: PreTrainedTokenizerBase, images: RunImages | None, shown: str
    ) -> None:
        """`shown` is the source in messages. Raises `ConfigError` for an operator that cannot be made."""
        self._shown = shown
        self._section = run.data.train
        self._data = run.data
        self._images = images
        processor = None if images is None else images.processor
        self._encoder = PromptEncoder.of(tokenizer, run.data, processor, load_training_tokens(run, tokenizer))
        self._operators = None if run.data.pipeline is None else RowOperators(run)
        self._steps = compute_horizon(run, 1).steps

    @property
    def order_state(self) -> None:
        """None: the position is the entire state."""
        return None

    def observe(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Rows in and out of each operator; results do not change the order."""
        return {} if self._operators is None else self._operators.take_metrics()

    def notes(self) -> tuple[str, ...]:
        """The source in one line; its rows are read during the run."""
        return (str(self),)

    def sources(self) -> frozenset[str]:
        """None: the rows are not known yet."""
        return frozenset()

    def steps_per_epoch(self, _n: int) -> int:
        """All steps of the run, because the length of an epoch is not known."""
        return self._steps


class TaskStream(_OpenTasks):
    """Tasks of a source of unknown length, over and over; `position` is the entire state.

    Blocks of `stream.shuffle_rows` consecutive rows are shuffled, each in an order that (seed, epoch, block)
    determines. A resume reads the source from its beginning up to the position, so the source must not change.
    """

    def __init__(
        self,
        run: Run,
        stream: StreamConfig,
        tokenizer: PreTrainedTokenizerBase,
        images: RunImages | None = None,
    ) -> None:
        path = run.data.train.path
        paths = (path,) if isinstance(path, str) else path
        super().__init__(run, tokenizer, images, ", ".join(map(redact_text, paths)))
        self._seed = run.seed
        self._block_rows = stream.shuffle_rows
        self._position = 0
        self._rows = self._read(0)

    def __str__(self) -> str:
        return f"train: a stream, {self._shown}"

    @property
    def position(self) -> int:
        """Number of rows passed since the start over all epochs, those filtered for their length included."""
        return self._position

    def restore(self, position: int, order_state: Mapping[str, Any] | None) -> None:
        """Continue from a saved position."""
        self._position = position
        self._rows = self._read(position)

    @property
    def fingerprint(self) -> str:
        """Identity of the stream: its path."""
        return f"the stream {self._shown}"

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks. Raises `DataError` for a row that lacks a column or, under `overlong: error`, is too
        long, and for a source without a row that fits."""
        tasks: list[Task] = []
        rejected = 0
        while len(tasks) < n:
            rows = list(islice(self._rows, n - len(tasks)))
            self._position += len(rows)
            found = self._tasks_of(rows)
            rejected = 0 if found else rejected + len(rows)
            if rejected > max(MAX_REJECTED, self._block_rows):
                if self._operators is not None:
                    raise DataError(
                        f"None of the last {rejected} rows of {self._shown} passed data.pipeline and "
                        f"data.max_prompt_tokens ({self._data.max_prompt_tokens}). `strop data run --dry-run` "
                        "shows what each operator removes; widen its limits."
                    )
                raise DataError(
                    f"The last {rejected} rows of {self._shown} have prompts of more than data.max_prompt_tokens "
                    f"({self._data.max_prompt_tokens}) tokens. Write a higher limit, or data.overlong: left."
                )
            tasks += found
        return tasks

    def _read(self, position: int) -> Iterator[tuple[int, str, Row]]:
        """Number, location and values of the rows from a position on, without end."""
        epoch, passed = 0, 0
        while True:
            length = 0
            rows = stream_rows(self._section)
            for block in range(1 << 62):
                size = len(chunk := list(islice(rows, self._block_rows)))
                order = range(size)
                if self._data.shuffle:
                    seed = derive_seed(self._seed, "stream", epoch, block)
                    order = epoch_permutation(size, seed, 0).tolist()
                skipped = min(size, max(0, position - passed))
                yield from ((length + i, *chunk[i]) for i in order[skipped:])
                length, passed = length + size, passed + size
                if size < self._block_rows:
                    break
            if not length:
                raise DataError(f"{self._shown} is empty: it has no rows.")
            epoch += 1

    def _tasks_of(self, rows: Sequence[tuple[int, str, Row]]) -> list[Task]:
        """Tasks of the rows that the operators leave and whose prompts fit, or were truncated to fit."""
        section, rule, limit = self._section, self._data.overlong, self._data.max_prompt_tokens
        located = [(f"train:{number}", where, row) for number, where, row in rows]
        if self._operators is not None:
            left = self._operators(_located(located), [number for number, _, _ in rows])
            located = [(name, f"{self._shown}, after data.pipeline: {name}", row) for name, row in left]
        dataset = DatasetRows([_located(located)])
        row_images = read_row_images(dataset, section, self._data.images, self._images, "train")
        chats: list[ChatPrompt] = [
            row_images.place(to_prompt(row, where, section), i) for i, (_, where, row) in enumerate(located)
        ]
        prompts = self._encoder.encode_all(chats) if chats else []
        kept = [i for i, prompt in enumerate(prompts) if rule != "filter" or len(prompt) <= limit]
        pad = None if self._images is None else self._images.processor.image_token_id
        fitted = fit_prompts((prompts[i] for i in kept), rule, limit, lambda i: dataset.where(kept[i]), pad)
        return [
            to_task(located[i][0], located[i][2], chats[i], section, prompt)
            for i, prompt in zip(kept, fitted.prompts, strict=True)
        ]


def _located(rows: Sequence[tuple[str, str, Row]]) -> LocatedRows:
    return LocatedRows([(where, row) for _, where, row in rows])


class TaskQueue(_OpenTasks):
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
        require_queue_url(section.path)
        read_table_slice(section.path, section.table, first=0, count=1)
        super().__init__(run, tokenizer, images, f"{redact_text(section.path)}, table {section.table}")
        self.position = 0
        """Number of rows read since the start, those filtered for their length included."""
        self._timeout_seconds = queue.timeout_seconds
        self._wait: TimedWait | None = None

    def __str__(self) -> str:
        return f"train: a queue, {self._shown}"

    def restore(self, position: int, order_state: Mapping[str, Any] | None) -> None:
        """Continue from a saved position."""
        self.position = position

    @property
    def fingerprint(self) -> str:
        """Identity of the queue: its table."""
        return f"the queue {self._section.table}"

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


EvalTasksets = tuple[tuple[EvalTasksetConfig, TaskSet], ...]


class TrainTaskSource(Protocol):
    """Source of training tasks: a taskset that is complete from the start, or a queue that grows."""

    @property
    def position(self) -> int:
        """Number of tasks taken so far, over all epochs; saved, with `order_state`, for an exact resume."""
        ...

    @property
    def order_state(self) -> Mapping[str, Any] | None:
        """State of an order that follows the results, as JSON values; None for one that `position` determines."""
        ...

    def restore(self, position: int, order_state: Mapping[str, Any] | None) -> None:
        """Continue from a saved position and `order_state`."""

    @property
    def fingerprint(self) -> str:
        """Identity of the tasks; explorer and trainer of one run must have the same."""
        ...

    def notes(self) -> Iterable[str]:
        """The source in one line, and notes about its rows."""
        ...

    def sources(self) -> frozenset[str]:
        """Data sources of the tasks that are known at the start."""
        ...

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` tasks in one epoch."""
        ...

    def take(self, n: int) -> list[Task]:
        """The next `n` tasks; an empty list if they are not there yet and the caller has to ask again."""
        ...

    def observe(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Report the results of groups, in the order in which their tasks were taken; returns metrics of the draws."""
        ...


@dataclass(frozen=True, slots=True)
class RunTasks:
    """Training tasks, eval tasksets and demonstrations."""

    train: TrainTaskSource
    eval: EvalTasksets
    auxiliary: Mapping[str, OfflineDataset]
    """Demonstrations that are trained on before or together with rollouts, by name."""
    pipeline_notes: tuple[str, ...] = ()
    """Notes about the pipeline that prepared the training tasks."""

    def notes(self) -> tuple[str, ...]:
        """One line per taskset: its number of tasks, and how many were filtered or truncated; and further notes."""
        answers = (note for each in self.auxiliary.values() for note in each.notes())
        evaluated = (note for _, taskset in self.eval for note in taskset.notes())
        return (*self.pipeline_notes, *self.train.notes(), *answers, *evaluated)


def load_tasks(run: Run, tokenizer: PreTrainedTokenizerBase) -> RunTasks:
    """Read and check all tasksets."""
    data = run.data
    images, tokens = load_prompt_images(run, tokenizer), load_training_tokens(run, tokenizer)
    train: TrainTaskSource
    if data.stream is not None:
        train = TaskStream(run, data.stream, tokenizer, images)
    elif data.queue is None:
        train = _load_training_tasks(run, tokenizer, images, tokens)
    else:
        train = TaskQueue(run, data.queue, tokenizer, images)
    auxiliary = {
        section.name: load_offline_dataset(
            section,
            data,
            tokenizer,
            name=section.name,
            seed=run.seed,
            shuffle=data.shuffle,
            images=images,
            tokens=tokens,
        )
        for section in data.demonstrations
    }
    return RunTasks(train, load_eval_tasks(run, tokenizer, data.eval), auxiliary, data_notes(run))


def _load_training_tasks(
    run: Run, tokenizer: PreTrainedTokenizerBase, images: RunImages | None, tokens: ModelTokens
) -> TaskSet | MixedTaskSet:
    """The training taskset, or the mixture of all of them."""
    data = run.data
    load = partial(
        load_taskset,
        data=data,
        tokenizer=tokenizer,
        seed=run.seed,
        shuffle=data.shuffle,
        images=images,
        tokens=tokens,
    )
    first = load(train_section(run), order=data.order)
    if not data.mixture:
        return first
    others = [load(section, name=f"mixture.{number}") for number, section in enumerate(data.mixture)]
    members = [first, *others]
    return MixedTaskSet(members, run_mixture_order(run, [len(member) for member in members]))


def load_eval_tasks(
    run: Run, tokenizer: PreTrainedTokenizerBase, sections: Sequence[EvalTasksetConfig]
) -> EvalTasksets:
    """Read and check eval tasksets."""
    if not sections:
        return ()
    load = partial(
        load_taskset,
        data=run.data,
        tokenizer=tokenizer,
        seed=run.seed,
        shuffle=False,
        images=load_prompt_images(run, tokenizer),
        tokens=load_policy_tokens(run, tokenizer),
    )
    return tuple((section, load(section)) for section in sections)
