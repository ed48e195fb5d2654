"""What every driver does between its steps: evaluate, record, save, stop, and go on from where it stood."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from strop.config.schema import Run
from strop.config.units import Amount
from strop.errors import Interrupted, TrainingError
from strop.protocols import Snapshot, WrittenFile
from strop.run.best import better, known_best
from strop.run.folder import RunFolder, RunState
from strop.run.length import Length
from strop.run.rates import Rates
from strop.run.records.record import Recorder
from strop.run.saving import Saver
from strop.run.second_place import SecondPlace
from strop.training import checkpoint
from strop.types import Group

Export = Callable[[Path], None]
Write = Callable[[], Mapping[str, WrittenFile]]
EXPORT_FOLDER = "model"
"""Where a checkpoint has the Hugging Face folder that `checkpoint.export` asks for."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What one step gave."""

    state: RunState
    """Where the run stands after it."""
    metrics: dict[str, float]
    groups: Sequence[Group] = ()
    """The step's rollouts, where it sampled any."""


class Loop(ABC):
    """Runs steps from a state to the end, and keeps what the run file says to keep.

    A driver says what a step is, how the held-out tasks are measured, and what a checkpoint holds.
    """

    def __init__(
        self, run: Run, state: RunState, length: Length, folder: RunFolder, recorder: Recorder
    ) -> None:
        self._run = run
        self._state = replace(state, best=known_best(run, state.best, folder.checkpoints))
        self._length = length
        self._folder = folder
        self._recorder = recorder
        self._saved_step = state.step
        self._save_seconds = 0.0
        self._export: Export | None = None
        self._second = SecondPlace.of(run)
        self._saver = Saver(beside=run.checkpoint.beside)

    @property
    @abstractmethod
    def _rates(self) -> Rates:
        """Of the updates; evaluations may change them."""

    @abstractmethod
    def _learn(self, step: int) -> Stepped:
        """One step of training, with the weights published to whoever samples from them."""

    @abstractmethod
    def _evaluate(self, step: int) -> dict[str, float]:
        """Measure what is held out; empty where nothing is."""

    @abstractmethod
    def _snapshot(self) -> Snapshot:
        """What a resume needs, beside the run's own state."""

    def _is_fed(self, step: int) -> bool:
        """Whether there is something to learn from in step `step`; without it the run ends before."""
        return True

    def _once_kept(self) -> Callable[[], None]:
        """What may happen once the state of now is in a checkpoint, for good."""
        return lambda: None

    def run(self, export: Export | None = None) -> RunState:
        """Go to the end. On `Interrupted` the state between steps is saved first.

        `export` writes the model as a Hugging Face folder; each checkpoint gets one then.
        """
        self._export = export
        self._rates.plateau = self._state.plateau
        with closing(self._saver):
            return self._run_steps()

    def _run_steps(self) -> RunState:
        try:
            if self._state.step == 0 and self._run.evaluate.at_start:
                self._recorder.step(0, self._evaluate(0))
            if self._state.owes_evaluation:
                self._recorder.step(self._state.step, self._evaluate_after_step())
            while self._state.step < self._length.steps and self._is_fed(self._state.step + 1):
                self._step(self._state.step + 1)
        except Interrupted as interrupted:
            self._save()
            self._saver.wait()
            raise Interrupted(
                f"{interrupted} {self._where_it_stands()}", interrupted.exit_code - 128
            ) from None
        self._save()
        self._saver.wait()
        return self._state

    def _where_it_stands(self) -> str:
        if self._state.step == 0:
            return "No step was done; the same command begins."
        return (
            f"The state after step {self._state.step} is in {self._folder.checkpoints}; the same command "
            "goes on from there."
        )

    def _step(self, step: int) -> None:
        run, before = self._run, self._state
        self._saver.look()
        try:
            stepped = self._learn(step)
        except TrainingError as error:
            good, _ = checkpoint.latest(self._folder.checkpoints)
            kept = f"The last good checkpoint is {good}." if good else "There is no checkpoint yet."
            raise type(error)(f"Step {step}: {error} {kept}") from error
        self._state = replace(stepped.state, plateau=before.plateau, best=before.best)
        metrics = {
            **stepped.metrics,
            "epoch": step / self._length.steps_per_epoch,
            "version": float(step),
        }
        if self._save_seconds:
            metrics["time/save_seconds"], self._save_seconds = self._save_seconds, 0.0
        if stepped.groups and self._is_due(run.record.rollouts_every, before):
            self._recorder.rollouts(step, stepped.groups)
        evaluates = self._is_due(run.evaluate.every, before) or step == self._length.steps
        if evaluates:
            metrics |= self._evaluate_after_step()
        self._recorder.step(step, metrics)
        if self._is_due(run.checkpoint.every, before) or (evaluates and run.checkpoint.best is not None):
            self._save()

    def _evaluate_after_step(self) -> dict[str, float]:
        """Evaluate, and remember what the schedule and the best step need of it, even if the run is
        stopped on the way."""
        state = self._state = replace(self._state, owes_evaluation=True)
        metrics = self._evaluate(state.step)
        self._rates.evaluated(metrics)
        best = better(self._run, state.best, state.step, metrics)
        self._state = replace(state, plateau=self._rates.plateau, best=best, owes_evaluation=False)
        return metrics

    def _is_due(self, every: Amount | None, before: RunState) -> bool:
        return self._length.is_due(every, before, self._state)

    def _save(self) -> None:
        """Save the state between two steps, unless that is done already."""
        if self._state.step == self._saved_step:
            return

        started = time.perf_counter()
        self._saver.wait()
        draft = checkpoint.begin(self._folder.checkpoints, self._state.step)
        write = self._snapshot().begin(draft.folder, copied=self._run.checkpoint.beside)
        self._saver.save(partial(self._finish, draft, write, self._state), self._once_kept())
        self._save_seconds = time.perf_counter() - started
        self._saved_step = self._state.step

    def _finish(self, draft: checkpoint.Draft, write: Write, state: RunState) -> None:
        def fill(folder: Path) -> Mapping[str, WrittenFile]:
            written = write()
            state.save(folder)
            if self._export is not None:
                self._export(folder / EXPORT_FOLDER)
            return written

        best = state.best.step if state.best else None
        keep = self._run.checkpoint.keep
        checkpoint.finish(draft, fill, keep=keep, best=best)
        if self._second is not None:
            self._second.mirror(self._folder)
