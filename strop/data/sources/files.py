"""Data files and their rows; a file's name says its split, by the naming rules of the Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from strop.config.paths import DATA_FILE_PATTERNS, DataFileName, data_file_name
from strop.data.sources.columns import TableRow
from strop.data.sources.csv_file import ROWS_PER_CHUNK, csv_tables, iterate_csv
from strop.data.sources.data_path import (
    DataPath,
    first_line,
    iterate_lines,
    list_items,
    may_be_list,
    open_bytes,
    open_parquet,
)
from strop.data.sources.mapped_rows import convert_file
from strop.data.sources.rows import InMemoryRows, JsonLinesRows, ParquetRows, Row, RowSource
from strop.errors import DataError
from strop.workers.json_text import parse_json

_STREAMED_ROWS = 256
"""Rows of a Parquet file that are read at once when it is streamed."""
MAPPED_FROM_BYTES = 16 << 20
"""Size from which a file is converted into the cache and memory-mapped; smaller files stay in memory."""
_SHARD = re.compile(r"^(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}")
_WORDS = "training|train|validation|valid|val|dev|testing|test|evaluation|eval"
_WORD = re.compile(rf"(?:^|[-._ 0-9])(?P<split>{_WORDS})(?=[-._ 0-9])")
_CANONICAL = {
    "training": "train",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "testing": "test",
    "evaluation": "test",
    "eval": "test",
}


def read_file(place: DataPath, texts: frozenset[str] = frozenset()) -> RowSource:
    """All rows of a file; `texts` are columns that are text in CSV too, whatever their values look like.

    Raises `DataError` if it is not a data file, cannot be read, or is empty.
    """
    name = _data_file(place)
    try:
        with place.access():
            part = _rows_of(place, name, texts)
    except (OSError, EOFError) as error:
        raise DataError(f"{place.display_path} cannot be read: {first_line(error)}.") from None
    if not len(part):
        raise DataError(f"{place.display_path} is empty: it has no rows.")
    return part


def _rows_of(place: DataPath, name: DataFileName, texts: frozenset[str]) -> RowSource:
    size = place.size_bytes()
    if size is None or size >= (MAPPED_FROM_BYTES // 8 if name.packed else MAPPED_FROM_BYTES):
        return convert_file(place, name, texts)
    if name.format == "parquet":
        return _read_parquet(place)
    return _read_csv(place, name, texts) if name.format == "csv" else _read_lines(place, name.packed)


def stream_file(place: DataPath, texts: frozenset[str] = frozenset()) -> Iterator[tuple[str, Row]]:
    """Location and values of each row of a file, read from its beginning; the arguments are those of `read_file`.

    Raises `DataError` if it is not a data file or is malformed, and OSError if it cannot be read.
    """
    with place.access():
        yield from _stream(place, _data_file(place), texts)


def _stream(place: DataPath, name: DataFileName, texts: frozenset[str]) -> Iterator[tuple[str, Row]]:
    if name.format == "parquet":
        with open_parquet(place) as file:
            rows = (row for batch in file.iter_batches(_STREAMED_ROWS) for row in batch.to_pylist())
            yield from _numbered(place, rows)
    elif name.format == "csv":
        values = iterate_csv(place, name.packed, name.delimiter)
        tables = csv_tables(values, texts, ROWS_PER_CHUNK)
        yield from _numbered(place, (row for table in tables for row in table.to_pylist()))
    else:
        for where, line in iterate_lines(place, name.packed):
            yield f"{place.display_path} {where}", parse_json(line)


def _numbered(place: DataPath, rows: Iterator[Row]) -> Iterator[tuple[str, Row]]:
    return (
        (f"{place.display_path} row {number} (counting from 0)", TableRow(row))
        for number, row in enumerate(rows)
    )


def _data_file(place: DataPath) -> DataFileName:
    name = data_file_name(place.path)
    if name is None:
        raise DataError(
            f"{place.display_path} has no format that Strop reads. Data files are named {DATA_FILE_PATTERNS}."
        )
    return name


def _read_parquet(place: DataPath) -> RowSource:
    with open_parquet(place) as file:
        table = file.read()
        table.validate(full=True)
    return ParquetRows(place.display_path, table, place.parent)


def _read_csv(place: DataPath, name: DataFileName, texts: frozenset[str]) -> RowSource:
    rows = iterate_csv(place, name.packed, name.delimiter)
    table = next(csv_tables(rows, texts, None), None)
    if table is None:
        return InMemoryRows(place.display_path, [])
    return ParquetRows(place.display_path, table, place.parent)


def _read_lines(place: DataPath, packed: str | None) -> RowSource:
    with open_bytes(place, packed) as file:
        text = file.read()
    if may_be_list(text.lstrip().partition(b"\n")[0]):
        items = list_items(place.display_path, text)
        if items is not None:
            return JsonLinesRows(place.display_path, b"\n".join(items), place.parent, unit="item")
    return JsonLinesRows(place.display_path, text, place.parent)


def split_of(filename: str) -> str | None:
    """`train` for `train.parquet`, `gsm8k_train.jsonl` or `train-00000-of-00002.parquet`; None if not named.

    Like the `datasets` library: any word before a shard's numbers, else the first of the usual words, of
    which `val` and `dev` mean `validation` and `eval` means `test`.
    """
    match = _SHARD.match(filename) or _WORD.search(filename)
    return canonical_split(match["split"]) if match else None


def canonical_split(split: str) -> str:
    """The standard name of a split."""
    return _CANONICAL.get(split, split)


def choose_split_hint(splits: Sequence[str]) -> str:
    """Advice for the case that there are several splits and none is selected."""
    example = "train" if "train" in splits else splits[0]
    return f"Select one: write `split: {example}` next to the path"


def files_of_split(files: Sequence[str], split: str | None, folder: str) -> list[str]:
    """The names of the files of `split`; all files if their names have no split.

    Raises `DataError` if the names do not determine which files to use.
    """
    by_split: dict[str | None, list[str]] = {}
    for file in sorted(files):
        by_split.setdefault(split_of(file), []).append(file)
    named = sorted(key for key in by_split if key is not None)
    if split is None:
        if len(by_split) == 1:
            return sorted(files)
        unnamed = ", ".join(by_split.get(None, []))
        others = f", and files of no split ({unnamed})" if unnamed else ""
        raise DataError(
            f"{folder} holds files of these splits: {', '.join(named)}{others}. {choose_split_hint(named)}, "
            "or name "
            "the files."
        )
    if not named:
        raise DataError(
            f"{folder} has no splits: none of its files is named after one, such as train.parquet or "
            f"train-00000-of-00001.parquet. Remove `split: {split}`, or name the files."
        )
    if canonical_split(split) not in by_split:
        raise DataError(f"{folder} has no split {split!r}; it has {', '.join(named)}.")
    return by_split[canonical_split(split)]
