"""Training tasks from a source of unknown length, read from its beginning as they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from strop.config.redact import redact_text
from strop.config.schema import Run
from strop.config.schema.data import StreamConfig
from strop.data.encoding.chat_template import ChatPrompt, PromptEncoder
from strop.data.encoding.truncation import fit_prompts
from strop.data.epoch_order import epoch_permutation
from strop.data.images.prompt_images import RunImages
from strop.data.images.row_images import read_row_images
from strop.data.prompt_check import to_prompt
from strop.data.sources.rows import DatasetRows, LocatedRows, Row
from strop.data.sources.stream import stream_rows
from strop.data.taskset import to_task
from strop.errors import DataError
from strop.run.rollout.row_operators import RowOperators
from strop.run.state.horizon import compute_horizon
from strop.run.tokenizer import load_training_tokens
from strop.seeds import derive_seed
from strop.types import RolloutGroup, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MAX_REJECTED = 10_000
"""Largest number of rows without a task, one after the other."""


class TaskStream:
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
        section = run.data.train
        paths = (section.path,) if isinstance(section.path, str) else section.path
        self._shown = ", ".join(map(redact_text, paths))
        self._section = section
        self._data = run.data
        self._images = images
        self._seed = run.seed
        self._block_rows = stream.shuffle_rows
        processor = None if images is None else images.processor
        self._encoder = PromptEncoder.of(tokenizer, run.data, processor, load_training_tokens(run, tokenizer))
        self._operators = None if run.data.pipeline is None else RowOperators(run)
        self._steps = compute_horizon(run, 1).steps
        self._position = 0
        self._rows = self._read(0)

    def __str__(self) -> str:
        return f"train: a stream, {self._shown}"

    @property
    def position(self) -> int:
        """Number of rows passed since the start over all epochs, those filtered for their length included."""
        return self._position

    @property
    def order_state(self) -> None:
        """None: the position is the entire state."""
        return None

    def restore(self, position: int, order_state: Mapping[str, Any] | None) -> None:
        """Continue from a saved position."""
        self._position = position
        self._rows = self._read(position)

    def observe(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Rows in and out of each operator; results do not change the order of a stream."""
        return {} if self._operators is None else self._operators.take_metrics()

    def notes(self) -> tuple[str, ...]:
        """The stream in one line; its rows are read during the run."""
        return (str(self),)

    @property
    def fingerprint(self) -> str:
        """Identity of the stream: its path."""
        return f"the stream {self._shown}"

    def sources(self) -> frozenset[str]:
        """None: the rows are not known yet."""
        return frozenset()

    def steps_per_epoch(self, _n: int) -> int:
        """All steps of the run, because the length of an epoch is not known."""
        return self._steps

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
