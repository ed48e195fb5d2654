"""Rows of a dataset in their original format, converted to Python objects on access."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from strop.config.load.config_tree import is_deeper
from strop.data.sources.columns import TableRow, top_level_columns
from strop.errors import DataError
from strop.workers.json_text import parse_json

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

Row = dict[str, Any]

_ROWS_PER_CHUNK = 1024
_MAX_DEPTH = 100
"""Maximum number of nested objects and lists in a row of JSON Lines."""
_DECODER: Any = json.JSONDecoder()  # typeshed lacks its method `scan_once`
_SURROGATE = re.compile("[\ud800-\udfff]")


class RowSource(Protocol):
    """The rows of one file, or of one split of a dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row: ...

    def where(self, index: int) -> str:
        """The location of a row, for messages."""
        ...

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        """All rows in order, with at least the columns of these paths."""
        ...

    @property
    def folder(self) -> str:
        """Folder or URL to which relative paths in the rows refer; empty for the working directory."""
        ...


class JsonLinesRows:
    """JSON Lines: the text of a file, and the offsets of its objects. Blank lines are ignored."""

    def __init__(self, name: str, text: bytes, folder: str = "", unit: str = "line") -> None:
        """`unit` is what a line of the text is in the file: a line, or an item of a list."""
        self._name = name
        self._unit = unit
        self._text = text
        self.folder = folder
        begins, ends, numbers = [], [], []
        begin = 0
        for number, line in enumerate(BytesIO(text), start=1):
            if line.strip():
                check_object(line, f"{name} {unit} {number}")
                begins.append(begin)
                ends.append(begin + len(line))
                numbers.append(number)
            begin += len(line)
        self._begins, self._ends, self._numbers = (
            np.array(offsets, np.int64) for offsets in (begins, ends, numbers)
        )

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, index: int) -> Row:
        row: Row = parse_json(self._text[self._begins[index] : self._ends[index]])
        return row

    def where(self, index: int) -> str:
        return f"{self._name} {self._unit} {self._numbers[index]}"

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))


def decode_object(text: bytes) -> Any:
    """The value of a line of JSON; `json.loads` detects other encodings than UTF-8. Raises ValueError."""
    if text[:2] == b'{"':
        line = text.decode("utf-8", "surrogatepass")
        try:
            value, end = _DECODER.scan_once(line, 0)
        except (StopIteration, json.JSONDecodeError, RecursionError):
            end = -1
        if end == len(line) or (end > 0 and not line[end:].strip(" \t\n\r")):
            return value
    return parse_json(text)


def check_object(line: bytes, where: str) -> None:
    """Raise `DataError` for a line that is not one JSON object of text within the limits."""
    try:
        value = decode_object(line.rstrip())
    except ValueError as error:
        what = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise DataError(
            f"{where} is not JSON ({what}). Each line must hold one complete object, such as "
            '{"question": "...", "answer": "..."}.'
        ) from None
    if not isinstance(value, dict):
        raise DataError(
            f"{where} holds a JSON {type(value).__name__}, not an object. Each line must hold one complete "
            'object, such as {"question": "...", "answer": "..."}.'
        )
    if line.count(b"[") + line.count(b"{") > _MAX_DEPTH and is_deeper(value, _MAX_DEPTH):
        raise DataError(f"{where} nests more than {_MAX_DEPTH} objects or lists; flatten it.")
    escaped = b"\\" in line and b"\\u" in line  # a search for one byte is ten times as fast
    half = _SURROGATE.search(json.dumps(value, ensure_ascii=False)) if escaped else None
    if half:
        raise DataError(
            f"{where} contains \\u{ord(half[0]):04x}, half of a surrogate pair, which is not valid text. Remove "
            "it, or write the complete pair."
        )


class ParquetRows:
    """A Parquet file in memory, as Arrow columns."""

    def __init__(self, name: str, table: pa.Table, folder: str = "") -> None:
        self._name = name
        self._table = table
        self.folder = folder

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Row:
        return TableRow(self._table.slice(index, 1).to_pylist()[0])

    def where(self, index: int) -> str:
        return f"{self._name} row {index} (counting from 0)"

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        table = self._table.select(top_level_columns(paths, self._table.column_names))
        for first in range(0, len(self), _ROWS_PER_CHUNK):
            yield from map(TableRow, table.slice(first, _ROWS_PER_CHUNK).to_pylist())


class InMemoryRows:
    """Rows that are Python values already, such as those of a database."""

    def __init__(self, name: str, rows: Sequence[Row], first: int = 0) -> None:
        """`first` is the number of the first row in the source that it was read from."""
        self._name = name
        self._rows = rows
        self._first = first
        self.folder = ""

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return self._rows[index]

    def where(self, index: int) -> str:
        return f"{self._name} row {self._first + index} (counting from 0)"

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        return iter(self._rows)


class LocatedRows:
    """Rows with the location of each one."""

    def __init__(self, rows: Sequence[tuple[str, Row]]) -> None:
        self._rows = rows
        self.folder = ""

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return self._rows[index][1]

    def where(self, index: int) -> str:
        return self._rows[index][0]

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        return (row for _, row in self._rows)


class HfDatasetRows:
    """A split of a `datasets` dataset, which that library memory-maps from disk."""

    def __init__(self, name: str, dataset: datasets.Dataset) -> None:
        self._name = name
        self._dataset = dataset.with_format(None)
        self.folder = ""
        self.fingerprint: str = dataset._fingerprint

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Row:
        return TableRow(self._dataset[index])

    def where(self, index: int) -> str:
        return f"{self._name} row {index} (counting from 0)"

    def require_valid(self) -> None:
        """Raise ArrowInvalid for values that no Arrow file has, such as offsets beyond its end: reading them would
        end the process."""
        self._dataset.data.table.validate(full=True)

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        columns = top_level_columns(paths, self._dataset.column_names)
        return map(TableRow, self._dataset.select_columns(columns))


def _locations(part: RowSource) -> Iterator[str]:
    locations = getattr(part, "locations", None)
    return (part.where(index) for index in range(len(part))) if locations is None else locations()


class DatasetRows:
    """All rows of a dataset, one source after the other; at most `limit` of them."""

    def __init__(self, parts: Sequence[RowSource], limit: int | None = None) -> None:
        self._parts = tuple(parts)
        self._ends = list(accumulate(len(part) for part in self._parts))
        total = self._ends[-1] if self._ends else 0
        self._length = total if limit is None else min(total, limit)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Row:
        """The row as a dict of Python values."""
        part, inside = self._find(index)
        return part[inside]

    def where(self, index: int) -> str:
        """The location of a row: its file, and the line or row in it."""
        part, inside = self._find(index)
        return part.where(inside)

    @property
    def fingerprint(self) -> list[Any] | None:
        """JSON values that change with the rows; None where a source has no fingerprint."""
        prints = [getattr(part, "fingerprint", None) for part in self._parts]
        return None if None in prints else [*prints, self._length]

    def folder(self, index: int) -> str:
        """Folder or URL to which relative paths in a row refer; empty for the working directory."""
        part, _ = self._find(index)
        return part.folder

    def locations(self) -> Iterator[str]:
        """The location of each row in order."""
        return islice((where for part in self._parts for where in _locations(part)), self._length)

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        """All rows in order, with at least the columns of these paths; others may be skipped."""
        return islice((row for part in self._parts for row in part.scan(paths)), self._length)

    def _find(self, index: int) -> tuple[RowSource, int]:
        if not 0 <= index < self._length:
            raise IndexError(f"row {index} of {self._length}")
        number = bisect_right(self._ends, index)
        before = self._ends[number - 1] if number else 0
        return self._parts[number], index - before
