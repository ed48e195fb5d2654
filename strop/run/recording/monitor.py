"""Protocol of a monitor: what the recorder reports to the console, TensorBoard, or a tracking service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from strop.config.schema.run import Run
from strop.runs.sessions import SessionOutcome
from strop.types import RolloutGroup


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Description of one session of a run, as every monitor receives it at the start."""

    run: Run
    """Validated configuration; a monitor that sends it elsewhere must redact secrets
    (`strop.config.redact`)."""
    folder: Path
    """Run folder."""
    title: str
    """One line that names the run, its size and its folder."""
    notes: tuple[str, ...]
    """Lines about the start, such as the checkpoint that the run resumes from."""
    steps: int
    """Total number of steps of the run."""
    steps_done: int
    """Number of steps completed before this session; 0 for a new run."""
    environment: Mapping[str, Any]
    """Host, package versions and command line, as written to `run.json`."""
    stream: TextIO
    """Output stream of the process, for monitors that print."""

    @property
    def first_step(self) -> int:
        """First row that this session may log: 0, or the step after the one that it resumes from."""
        return self.steps_done + 1 if self.steps_done > 0 else 0


class Monitor(Protocol):
    """Receiver of a run's metrics and samples.

    The recorder calls `start` once, then any number of the other methods, and `finish` last. An `OSError` of
    any method ends the run with one paragraph; other exceptions are not caught.
    """

    def start(self, session: SessionInfo) -> None:
        """Begin a session; rows from `session.first_step` on replace those of an earlier session."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of one step; values may be NaN or infinite.

        A step that is evaluated has a second call with the metrics of the evaluation, once it has ended.
        """

    def samples(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Record the rollouts of one evaluation of the eval taskset `name`."""

    def message(self, line: str) -> None:
        """Record a line of text about the run, such as a warning."""

    def finish(self, outcome: SessionOutcome, message: str | None) -> None:
        """End the session; `message` is the text of the error that ended it, if any."""
