"""What is written down of a run while it runs.

    run.json          each session of the run: when, how it was called, on what, how it ended
    metrics.jsonl     one row per step
    tensorboard/      the same for TensorBoard
    rollouts/         step-000010.parquet: all rollouts of chosen steps
    eval/<name>/      step-000010.parquet: all rollouts of an evaluation

A resumed run goes on in the same files: rows and rollouts of later steps than the one it resumes
from are dropped, so that in the end they are those of a run that was never interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from strop.config.load import Loaded
from strop.config.redact import redact
from strop.config.schema.algorithm import Dpo, Sft
from strop.errors import Interrupted, RunFolderError
from strop.run.folder import RunFolder
from strop.run.length import Length
from strop.run.metrics import metric_of
from strop.run.records.console import Display, NoDisplay, make_display
from strop.run.records.facts import command_line, machine_facts, peak_memory_mb
from strop.run.records.rollout_file import write_rollouts
from strop.run.records.rows import drop_rows_after, last_row, write_row
from strop.run.records.sessions import Outcome, begin_session, end_session
from strop.run.records.shown import answers_table
from strop.run.resume import Start
from strop.types import Group

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Recorder:
    """Keeps the record of one session of a run, from `with` to its end.

    Write a step's row before its checkpoint: a run that resumes from that checkpoint finds the row.
    Whatever cannot be written raises `RunFolderError`.
    """

    def __init__(
        self, folder: RunFolder, loaded: Loaded, length: Length, start: Start, stream: TextIO | None = None
    ) -> None:
        self.last: dict[str, float] = {}
        """The row of the last step."""
        self._folder = folder
        self._loaded = loaded
        self._length = length
        self._start = start
        monitors = loaded.run.record.monitors
        self._display: Display = (
            make_display(stream or sys.stdout, length.steps) if "console" in monitors else NoDisplay()
        )
        self._with_tensorboard = "tensorboard" in monitors
        self._tensorboard: SummaryWriter | None = None
        self._files = ExitStack()

    def __enter__(self) -> Self:
        done = self._start.state.step
        kept = done if done > 0 else -1
        with _writing(self._folder.path):
            begin_session(self._folder.path, self._facts())
            self.last = last_row(drop_rows_after(self._folder.metrics, kept))
            _drop_rollouts_after(self._folder, kept)
            self._rows = self._files.enter_context(self._folder.metrics.open("a", encoding="utf-8"))
            if self._with_tensorboard:
                events = self._folder.path / Path(self._loaded.run.record.tensorboard).expanduser()
                self._tensorboard = self._files.enter_context(_tensorboard(events, kept + 1))
        self._display.open(self._title(), self._notes(), done=done)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome: Outcome = "finished" if error is None else "failed"
        if isinstance(error, Interrupted | KeyboardInterrupt):
            outcome = "interrupted"
        message = None if error is None else str(error) or type(error).__name__
        self._display.close()
        with _writing(self._folder.path):
            self._files.close()
            end_session(self._folder.path, outcome, message)

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step's row, and show it. Raises `KeyError` for a metric that has no definition."""
        self.last = {"step": float(step), **metrics, "memory/peak_mb": peak_memory_mb()}
        for name in self.last:
            metric_of(name)
        with _writing(self._folder.metrics):
            write_row(self._rows, step, {k: v for k, v in self.last.items() if k != "step"})
            if self._tensorboard is not None:
                for name, value in self.last.items():
                    self._tensorboard.add_scalar(name, value, step)
                self._tensorboard.flush()
        self._display.step(step, self.last)

    def say(self, line: str) -> None:
        """Show a line that a user should know."""
        self._display.say(line)

    def rollouts(self, step: int, groups: Sequence[Group]) -> None:
        """Write all rollouts of a training step."""
        self._write_rollouts(self._folder.rollouts, step, groups)

    def evaluation(self, name: str, step: int, groups: Sequence[Group]) -> None:
        """Write all rollouts of an eval taskset."""
        self._write_rollouts(self._folder.path / "eval" / name, step, groups)
        shown = self._loaded.run.record.eval_answers
        if self._tensorboard is not None and shown:
            with _writing(self._folder.path):
                self._tensorboard.add_text(f"eval/{name}/answers", answers_table(groups, shown), step)

    def _write_rollouts(self, folder: Path, step: int, groups: Sequence[Group]) -> None:
        path = folder / f"step-{step:06d}.parquet"
        with _writing(path):
            write_rollouts(path, step, groups)

    def _title(self) -> str:
        run = self._loaded.run
        size = f"{run.trainer.tasks_per_step} tasks"
        if not isinstance(run.algorithm, Sft | Dpo):
            size += f" x {run.algorithm.rollouts_per_task} rollouts"
        return f"{run.project} / {run.name}: {self._length.steps} steps of {size}, in {self._folder.path}"

    def _notes(self) -> tuple[str, ...]:
        if self._start.state.step >= self._length.steps:
            return (
                *self._start.notes,
                f"All {self._length.steps} steps are done already: nothing is left to do.",
            )
        return self._start.notes

    def _facts(self) -> dict[str, Any]:
        return {
            "project": self._loaded.run.project,
            "name": self._loaded.run.name,
            "steps": self._length.steps,
            "from_step": self._start.state.step,
            "command": command_line(),
            "notes": [*self._loaded.notes, *self._start.notes],
            "set_aside": [
                {"key": one.key, "value": redact(one.value, one.key), "instead": one.instead}
                for one in self._loaded.set_aside
            ],
            **machine_facts(),
        }


def _drop_rollouts_after(folder: RunFolder, step: int) -> None:
    for path in (*folder.rollouts.glob("step-*.parquet"), *folder.path.glob("eval/*/step-*.parquet")):
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()


def _tensorboard(folder: Path, purge_step: int) -> SummaryWriter:
    # Imported here: it takes a second, and not every run wants it.
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=purge_step)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"The record of the run could not be written to {path}: {error.strerror or error}. The run stops "
            "rather than lose what it does. Make room on that disk, or move `output`; the same command then "
            "goes on from the last checkpoint."
        ) from error
