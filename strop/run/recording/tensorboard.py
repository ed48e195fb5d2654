"""TensorBoard monitor: scalars of every step, and the responses to a few evaluation tasks as text."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.run.recording.monitor import SessionInfo
from strop.runs.sample_table import samples_markdown
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup
from strop.workers.files import AppendFile

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


class TensorBoardMonitor:
    """Writes event files into the folder that `record.tensorboard` names."""

    def __init__(self) -> None:
        self._file: EventFile | None = None
        self._sample_count = 0

    def start(self, session: SessionInfo) -> None:
        """Open an event file; TensorBoard hides earlier events of the steps that this session repeats."""
        record = session.run.record
        self._sample_count = record.eval_answers
        self._file = EventFile(session.folder / Path(record.tensorboard).expanduser(), session.first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric, all of them in one record."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._file is not None:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
            self._file.add(step, Summary(value=values))

    def samples(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Write the responses to `record.eval_answers` tasks as a Markdown table."""
        from torch.utils.tensorboard.summary import text

        if self._file is not None and self._sample_count:
            table = samples_markdown(groups, self._sample_count)
            self._file.add(step, text(f"eval/{name}/answers", table))  # type: ignore[no-untyped-call]

    def message(self, line: str) -> None:
        """Do nothing: TensorBoard has no log of messages."""

    def finish(self, outcome: SessionOutcome, message: str | None) -> None:
        """Close the event file."""
        if self._file is not None:
            self._file.close()
            self._file = None
