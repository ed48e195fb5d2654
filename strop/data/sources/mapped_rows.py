"""Rows of large files: converted once into an Arrow file in the cache, which is memory-mapped.

JSON Lines stay text, so that a row has only its own keys and values of any type; CSV and Parquet become columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.paths import DataFileName
from strop.data.progress_bar import with_progress_bar
from strop.data.sources.cache import cache_key, find_entry, new_entry
from strop.data.sources.columns import TableRow, top_level_columns
from strop.data.sources.csv_file import ROWS_PER_CHUNK, csv_schema, csv_tables, iterate_csv
from strop.data.sources.data_path import DataPath, iterate_lines, open_parquet
from strop.data.sources.rows import Row, RowSource, decode_object

if TYPE_CHECKING:
    import pyarrow as pa


ROWS_PER_BATCH = 2048
"""Rows of each batch of an Arrow file but the last one."""
_LAYOUT = 3
"""Version of the entries: those of another version are not read."""
_FILE = "rows.arrow"


class ArrowFile:
    """An Arrow file whose batches have `ROWS_PER_BATCH` rows: mapped for single rows, read for scans."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._path = path
        self._mapped = pa.ipc.open_file(pa.memory_map(str(path)))
        self._length: int | None = None
        self._last: tuple[int, pa.RecordBatch] = (-1, None)
        """Number and columns of the batch that was read last; neighbors are often read one after the other."""
        self.columns: list[str] = self._mapped.schema.names

    def __len__(self) -> int:
        if self._length is None:
            last = self._mapped.num_record_batches - 1
            rest = self._mapped.get_batch(last).num_rows if last >= 0 else 0
            self._length = max(last, 0) * ROWS_PER_BATCH + rest
        return self._length

    def row(self, index: int) -> pa.RecordBatch:
        """One row, whose columns are views of the mapped file."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        number, batch = self._last
        if number != index // ROWS_PER_BATCH:
            number = index // ROWS_PER_BATCH
            batch = self._mapped.get_batch(number)
            self._last = (number, batch)  # at once: several threads read rows
        return batch.slice(index % ROWS_PER_BATCH, 1)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Columns of all batches in order, each read into memory, so that a scan leaves no pages of the file mapped."""
        import pyarrow as pa

        with pa.OSFile(str(self._path)) as file:
            numbers = [self.columns.index(name) for name in columns]
            reader = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=numbers))
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


class _MappedRows:
    """An Arrow file of the rows of a source."""

    def __init__(self, name: str, file: ArrowFile, folder: str, fingerprint: str) -> None:
        self._name = name
        self._file = file
        self.folder = folder
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self._file)


class MappedJsonLines(_MappedRows):
    """JSON Lines: columns `place` (`line 3`, in the source) and `text` of an Arrow file."""

    def __getitem__(self, index: int) -> Row:
        row: Row = decode_object(self._file.row(index).column("text")[0].as_py())
        return row

    def where(self, index: int) -> str:
        return f"{self._name} {self._file.row(index).column('place')[0].as_py()}"

    def locations(self) -> Iterator[str]:
        """The location of each row in order."""
        for batch in self._file.batches(["place"]):
            yield from (f"{self._name} {place}" for place in batch.column("place").to_pylist())

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        for batch in self._file.batches(["text"]):
            for text in batch.column("text").to_pylist():
                yield decode_object(text)


class MappedTable(_MappedRows):
    """Columns of an Arrow file."""

    def __getitem__(self, index: int) -> Row:
        return TableRow(self._file.row(index).to_pylist()[0])

    def where(self, index: int) -> str:
        return f"{self._name} row {index} (counting from 0)"

    def scan(self, paths: Sequence[str]) -> Iterator[Row]:
        columns = top_level_columns(paths, self._file.columns)
        for batch in self._file.batches(columns):
            yield from map(TableRow, batch.to_pylist())


class ArrowWriter:
    """Writes batches of any size as an Arrow file with batches of `ROWS_PER_BATCH` rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        import pyarrow as pa

        self._schema = schema
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._count = 0
        self.num_rows = 0
        """Number of rows so far."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch."""
        self._waiting.append(batch)
        self._count += batch.num_rows
        self.num_rows += batch.num_rows
        if self._count >= ROWS_PER_BATCH:
            self._flush(self._count - self._count % ROWS_PER_BATCH)

    def write_columns(self, columns: Sequence[Sequence[Any]]) -> None:
        """Add rows, as one list per column."""
        import pyarrow as pa

        arrays = [pa.array(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
        self.write(pa.record_batch(arrays, schema=self._schema))

    def close(self) -> None:
        """Write the last rows, and end the file."""
        self._flush(self._count)
        self._writer.close()
        self._sink.close()

    def _flush(self, rows: int) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        for first in range(0, rows, ROWS_PER_BATCH):
            (batch,) = table.slice(first, min(ROWS_PER_BATCH, rows - first)).to_batches()
            self._writer.write_batch(batch)
        left = table.slice(rows)
        self._waiting, self._count = left.to_batches(), left.num_rows


def convert_file(place: DataPath, name: DataFileName, texts: frozenset[str]) -> RowSource:
    """The rows of a file, from the cache if this version of it was converted before.

    `texts` are columns that are text in CSV, whatever their values look like.

    Raises `DataError` for a malformed file, and OSError for one that cannot be read.
    """
    version = place.version()
    kind = name.format
    key = cache_key("rows", _LAYOUT, kind, name.delimiter, sorted(texts) if kind == "csv" else None, version)
    found = None if version is None else find_entry(key)
    if found is not None:
        entry, _ = found
    else:
        with new_entry(key, temporary=version is None) as new:
            path = new.folder / _FILE
            if kind == "json":
                _convert_lines(place, name.packed, path)
            elif kind == "csv":
                _convert_csv(place, name, texts, path)
            else:
                _convert_parquet(place, path)
        entry = new.entry
    rows = MappedJsonLines if kind == "json" else MappedTable
    return rows(place.display_path, ArrowFile(entry / _FILE), place.parent, key)


def _convert_lines(place: DataPath, packed: str | None, path: Path) -> None:
    import pyarrow as pa

    schema = pa.schema([("place", pa.string()), ("text", pa.binary())])
    lines = with_progress_bar(iterate_lines(place, packed), None, f"Reading {place.display_path}")
    _write_chunks(lines, schema, path)


def _convert_csv(place: DataPath, name: DataFileName, texts: frozenset[str], path: Path) -> None:
    """Read the file twice: for the types of its columns, and for its rows."""

    def rows(purpose: str) -> Iterator[list[str]]:
        read = iterate_csv(place, name.packed, name.delimiter)
        return with_progress_bar(read, None, f"{purpose} {place.display_path}")

    schema = csv_schema(rows("Looking through"), texts)
    writer = ArrowWriter(path, schema)
    for table in csv_tables(rows("Reading"), texts, ROWS_PER_CHUNK, schema):
        for batch in table.combine_chunks().to_batches():
            writer.write(batch)
    writer.close()


def _write_chunks(rows: Iterable[Any], schema: Any, path: Path) -> None:
    writer = ArrowWriter(path, schema)
    iterator = iter(rows)
    while chunk := list(islice(iterator, ROWS_PER_BATCH)):
        writer.write_columns(list(zip(*chunk, strict=True)))
    writer.close()


def _convert_parquet(place: DataPath, path: Path) -> None:
    with open_parquet(place) as file:
        schema = _plain_schema(file.schema_arrow)
        writer = ArrowWriter(path, schema)
        batches: Iterator[Any] = file.iter_batches(ROWS_PER_BATCH)
        total = -(-file.metadata.num_rows // ROWS_PER_BATCH)
        for batch in with_progress_bar(batches, total, f"Reading {place.display_path}"):
            batch.validate(full=True)
            writer.write(batch.cast(schema))
        writer.close()


def _plain_schema(schema: Any) -> Any:
    """The schema with the values of dictionary-encoded columns, whose dictionaries may differ between batches."""
    import pyarrow as pa

    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(fields)
