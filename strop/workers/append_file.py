"""Files to which complete records are appended, such as lines of JSON."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CHUNK_BYTES = 1 << 16


class AppendFile:
    """A file of records. One that cannot be written completely is removed; nothing is held back in a buffer.

    Opening a file of lines removes an incomplete last line, which a killed process left.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._descriptor = self._file.fileno()
        complete = _end_of_complete_lines(path)
        if complete < os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, complete)

    def append(self, records: bytes) -> int:
        """Append records, all or none; returns the offset of the first one."""
        start = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(records)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise
        return start

    def sync(self) -> None:
        """Flush the file to disk, so that it survives a crash of the machine."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file; every record is written already."""
        self._file.close()


def _end_of_complete_lines(path: Path) -> int:
    """Offset after the last newline."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0
