"""TensorBoard monitor: scalars of every step, and the responses to a few evaluation tasks as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from strop.run.recording.event_file import EventFile
from strop.run.recording.monitor import SessionInfo
from strop.runs.sample_table import samples_markdown
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup


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
