"""Rows read from the beginning of their source as they are needed, without its length being known."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.redact import redact_text
from strop.config.schema.data import TasksetConfig
from strop.data.sources.data_path import first_line
from strop.data.sources.files import stream_file
from strop.data.sources.hub import stream_hub_dataset
from strop.data.sources.reader import find_files
from strop.data.sources.rows import Row
from strop.errors import DataError


def stream_rows(taskset: TasksetConfig) -> Iterator[tuple[str, Row]]:
    """Location and values of each row of everything that `path` names, in order; at most `limit_tasks`.

    Raises `DataError` for a source that is missing or malformed, when its rows are reached.
    """
    for number, row in enumerate(_rows(taskset)):
        if taskset.limit_tasks is not None and number >= taskset.limit_tasks:
            return
        yield row


def _rows(taskset: TasksetConfig) -> Iterator[tuple[str, Row]]:
    for path in (taskset.path,) if isinstance(taskset.path, str) else taskset.path:
        places = find_files(path, taskset)
        try:
            if places is None:
                yield from stream_hub_dataset(path, taskset.split, taskset.subset)
            else:
                for place in places:
                    yield from stream_file(place, taskset.text_columns)
        except OSError as error:
            raise DataError(f"{redact_text(path)} cannot be read: {first_line(error)}.") from None
