"""Event files of TensorBoard, in which every record is complete."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from strop.workers.append_file import AppendFile

_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\..*")
_FORMAT = "brain.Event:2"


class EventFile:
    """A new event file, which TensorBoard reads after all files of its folder.

    A record that the disk refuses leaves no part in the file. If a kill cuts one off, TensorBoard reads the records
    before it, and then the next file. tensorboard's own writer has neither property: it writes in a thread.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        """TensorBoard hides the events of `first_step` and later steps in earlier files."""
        # Imported here, because the import takes about a second and not every run uses TensorBoard.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._new_event = Event
        folder.mkdir(parents=True, exist_ok=True)
        self._file = AppendFile(folder / _next_name(folder))
        self._records = RecordWriter(_RecordTarget(self._file))
        self._add(file_version=_FORMAT)
        self._add(step=first_step, file_version=_FORMAT)
        self._add(step=first_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, summary: Any) -> None:
        """Append the values of one step, a TensorBoard `Summary`. Raises `OSError` where they cannot be written."""
        self._add(step=step, summary=summary)

    def close(self) -> None:
        """Close the file; every record is written already."""
        self._file.close()

    def _add(self, **fields: Any) -> None:
        self._records.write(self._new_event(wall_time=time.time(), **fields).SerializeToString())


class _RecordTarget:
    """The target of tensorboard's `RecordWriter`, which passes each record in one call."""

    def __init__(self, file: AppendFile) -> None:
        self._file = file

    def write(self, record: bytes) -> None:
        self._file.append(record)


def _next_name(folder: Path) -> str:
    """Name that sorts after all others, also within one second or after a change of the clock."""
    seconds = [int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    second = max([int(time.time()), *(earlier + 1 for earlier in seconds)])
    return f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}.0"
