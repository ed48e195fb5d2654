"""Rows of large files: converted once into an Arrow file in the cache, which is memory-mapped.

JSON Lines stay text, so that a row has only its own keys and values of any type; CSV and Parquet become columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.data.sources.columns import TableRow, top_level_columns
from strop.data.sources.rows import Row, decode_object

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH = 2048
"""Rows of each batch of an Arrow file but the last one."""


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
