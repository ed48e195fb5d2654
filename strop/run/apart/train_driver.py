"""The trainer's loop where the explorer is a process of its own: take a step's groups, train, publish.

Consumes    the groups of step after step, from the buffer.
Waits for   the next step's to be there, whole.
Unblocked   by the explorer's `put`; by its end; by a signal. It never waits for the explorer otherwise: what
            that one has not fetched yet stands in the synchronizer.
Gives       versions of the weights to the synchronizer; to the buffer, after each checkpoint, its word that
            the groups are learned from for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from strop.config.schema import Run
from strop.run.apart.intake import Intake
from strop.run.folder import RunFolder, RunState
from strop.run.learning import Learning
from strop.run.length import Length
from strop.run.loop import Export, Loop, Stepped
from strop.run.rates import Rates
from strop.run.records.record import Recorder
from strop.run.saving import Snapshots
from strop.sync.publish import Publisher
from strop.sync.table import SAVED


class TrainDriver(Loop):
    """Learns from an explorer's rollouts; what is held out is measured by the explorer."""

    def __init__(
        self,
        run: Run,
        learning: Learning,
        intake: Intake,
        publisher: Publisher,
        state: RunState,
        length: Length,
        folder: RunFolder,
        recorder: Recorder,
    ) -> None:
        super().__init__(run, state, length, folder, recorder)
        self._learning = learning
        self._intake = intake
        self._publisher = publisher

    @property
    def _rates(self) -> Rates:
        return self._learning.rates

    def run(self, export: Export | None = None) -> RunState:
        """As any driver; first it puts right what an earlier start left half done."""
        self._intake.settle(self._state.step)
        self._publisher.after(self._state.step, self._length.steps)
        state = super().run(export)
        self._publisher.finish()
        return state

    def _learn(self, step: int) -> Stepped:
        started = time.perf_counter()
        groups = self._intake.take(step)
        taken = time.perf_counter()
        trained = self._learning.step(groups, step, self._state.updates)
        learned = time.perf_counter()
        self._publisher.after(step, self._length.steps)
        ended = time.perf_counter()
        metrics = trained.metrics | {
            "time/wait_for_groups_seconds": taken - started,
            "time/publish_seconds": ended - learned,
            "time/step_seconds": ended - started,
        }
        updates = self._state.updates + trained.updates
        return Stepped(self._learning.state(step, updates, self._state.position), metrics)

    def _evaluate(self, step: int) -> dict[str, float]:
        return {}

    def _snapshot(self) -> Snapshots:
        learned, versions = self._learning.snapshot(), self._publisher.snapshot()
        return learned if versions is None else Snapshots({**learned.parts, SAVED: versions})

    def _once_kept(self) -> Callable[[], None]:
        return partial(self._intake.acknowledge, self._intake.handed_out())
