"""TensorBoard monitor: scalars of every step, and the responses to a few evaluation tasks as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strop.run.recording.monitor import SessionInfo
from strop.runs.sample_table import samples_markdown
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardMonitor:
    """Writes event files into the folder that `record.tensorboard` names."""

    def __init__(self) -> None:
        self._writer: SummaryWriter | None = None
        self._sample_count = 0

    def start(self, session: SessionInfo) -> None:
        """Open an event file; TensorBoard hides earlier events of the steps that this session repeats."""
        # Imported here, because the import takes about a second and not every run uses TensorBoard.
        from torch.utils.tensorboard import SummaryWriter

        record = session.run.record
        folder = session.folder / Path(record.tensorboard).expanduser()
        self._sample_count = record.eval_answers
        self._writer = SummaryWriter(str(folder), purge_step=session.first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one scalar per metric and flush the file."""
        if self._writer is not None:
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()

    def samples(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Write the responses to `record.eval_answers` tasks as a Markdown table."""
        if self._writer is not None and self._sample_count:
            text = samples_markdown(groups, self._sample_count)
            self._writer.add_text(f"eval/{name}/answers", text, step)

    def message(self, line: str) -> None:
        """Do nothing: TensorBoard has no log of messages."""

    def finish(self, outcome: SessionOutcome, message: str | None) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
