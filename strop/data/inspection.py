"""A look at a run's data before the start, without model and tokenizer: number of rows, columns of the first ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from strop.config.paths import existing_path
from strop.config.schema import Run
from strop.config.schema.data import TasksetConfig
from strop.data.mixture import run_mixture_order
from strop.data.prompt_check import to_prompt
from strop.data.prompt_columns import prompt_columns
from strop.data.sources.columns import value_at
from strop.data.sources.reader import read_rows
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.printable import counted

_READ_ROWS = 100
"""Rows whose columns are read; the run checks all of them."""


def inspect_data(run: Run) -> Iterator[str]:
    """Yield one line per taskset: its rows, and the steps of an epoch for training.

    Raises DataError for files that cannot be read, a row among the first ones that lacks a column, and a taskset
    that is too small for one step.
    """
    if run.data.is_prepared:
        yield f"train: {len(read_rows(run.data.train))} rows, from which data.pipeline prepares the tasks"
    elif run.data.stream is not None:
        yield "train: a stream, read during the run"
    elif run.data.queue is None:
        yield from _training_lines(run)
    others: list[tuple[str, TasksetConfig]] = [(each.name, each) for each in run.data.demonstrations]
    for name, section in others + [(each.name, each) for each in run.data.eval]:
        rows = _rows(name, section)
        yield f"{name}: {counted(len(rows), 'row')}" if rows is not None else _unread(name, section)


def steps_per_epoch(run: Run) -> int | None:
    """Steps of an epoch if no row is filtered; None where not all training rows are files of this machine.

    Raises DataError like `inspect_data`.
    """
    data = run.data
    if data.is_prepared or data.stream is not None or data.queue is not None:
        return None
    sizes = []
    for section in data.training_tasksets().values():
        paths = (section.path,) if isinstance(section.path, str) else section.path
        if section.dataset is not None or not all(map(existing_path, paths)):
            return None
        sizes.append(len(read_rows(section)))
    return run_mixture_order(run, sizes).steps_per_epoch(run.tasks_sampled_per_step)


def _training_lines(run: Run) -> Iterator[str]:
    """One line per training taskset; the last one, if all of them are read, with the steps of an epoch."""
    sizes, per_step = [], run.trainer.tasks_per_step
    sets = run.data.training_tasksets()
    for field, section in sets.items():
        name = field.removeprefix("data.")
        rows = _rows(name, section)
        sizes.append(None if rows is None else len(rows))
        if rows is None or len(sets) > 1:
            yield f"{name}: {counted(len(rows), 'row')}" if rows is not None else _unread(name, section)
    known = [size for size in sizes if size is not None]
    if run.data.packing is not None and known:
        longest = run.data.max_prompt_tokens + run.data.max_response_tokens
        yield f"train: {counted(sum(known), 'row')}, in sequences of at most {longest} tokens, {per_step} per step"
    elif len(known) == len(sizes):
        steps = run_mixture_order(run, known).steps_per_epoch(per_step)
        yield f"train: {counted(sum(known), 'row')}, {counted(steps, 'step')} of {per_step} per epoch"


def _unread(name: str, section: TasksetConfig) -> str:
    if section.dataset is not None:
        return f"{name}: not read (a dataset class)"
    paths = (section.path,) if isinstance(section.path, str) else section.path
    if names := [path for path in paths if "://" not in path and existing_path(path) is None]:
        shown = ", ".join(names)
        return f"{name}: not read (there is no {shown} here, so the run loads it from the Hugging Face hub)"
    return f"{name}: not read (not a file of this machine)"


def _rows(name: str, section: TasksetConfig) -> DatasetRows | None:
    """The rows, after a look at the first ones; None for what is not a file of this machine."""
    paths = (section.path,) if isinstance(section.path, str) else section.path
    if section.dataset is not None or not all(map(existing_path, paths)):
        return None
    rows = read_rows(section)
    if not len(rows):
        raise DataError(f"The taskset {name} has no rows.")
    columns = _columns(section)
    read = columns if section.text else [*columns, *prompt_columns(section)]
    for number, row in enumerate(islice(rows.scan(read), _READ_ROWS)):
        where = rows.where(number)
        for column in columns:
            value_at(row, column, where)
        if not section.is_offline:
            to_prompt(row, where, section)
    return rows


def _columns(section: TasksetConfig) -> list[str]:
    """Columns that each row must have, apart from the prompt, which complete conversations lack."""
    optional = {*section.optional_columns}
    if section.is_offline:
        named = [section.text, section.response, section.label, section.chosen, section.rejected]
        named += [section.margin, section.score, section.steps]
    else:
        named = [section.answer, section.source]
    return [column for column in named if column is not None and column not in optional]
