"""The trainer's loop where the explorer is a process of its own: take a step's groups, train, publish.

Consumes    the groups of step after step, from the buffer, as its intake has them.
Waits for   the next step's to be there, for as long as that may take.
Unblocked   by the explorer's `put`; by its end; by a signal. It never waits for the explorer otherwise: what
            that one has not fetched yet stands in the synchronizer.
Gives       versions of the weights to the synchronizer; to the buffer, after each checkpoint, its word that
            the groups are learned from for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from strop.config.schema import Run
from strop.errors import StoreError
from strop.run.apart.intake import Batch, Intake
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
        self._first = run.trainer.warm_up_steps
        self._batch: Batch | None = None
        self._wait_seconds = 0.0

    @property
    def _rates(self) -> Rates:
        return self._learning.rates

    def run(self, export: Export | None = None) -> RunState:
        """As any driver; first it puts right what an earlier start left half done."""
        self._intake.settle(self._state.taken)
        self._intake.shift = self._state.shift
        self._publisher.tell_shift(self._state.shift)
        self._publisher.begin()
        self._publisher.after(self._state.step, self._length.steps)
        state = super().run(export)
        self._publisher.finish()
        self._intake.acknowledge(self._intake.owed)  # what was thrown away since the last checkpoint
        if state.step < self._length.steps:
            self._recorder.say(
                f"The run ends after step {state.step} of {self._length.steps}: the explorer has finished, "
                "and no group is left. Groups are taken as they come, so what was thrown away, dropped, or "
                "had nothing to learn from leaves fewer steps (groups/* in metrics.jsonl)."
            )
        elif left := self._intake.waiting():
            self._recorder.say(f"All steps are done; {left} groups were left over in the buffer.")
        return state

    def _is_fed(self, step: int) -> bool:
        if step <= self._first:
            return True
        started = time.perf_counter()
        self._batch = self._intake.take(step)
        self._wait_seconds = time.perf_counter() - started
        if self._batch is None and step == self._first + 1:
            raise StoreError(
                "The explorer has finished, and gave not one group that can be learned from: its own "
                "metrics.jsonl says what became of its rollouts (rollouts/error_share, groups/left_out)."
            )
        return self._batch is not None

    def _learn(self, step: int) -> Stepped:
        started = time.perf_counter()
        trained = self._learning.warm_up(step, self._state.updates)
        metrics: dict[str, float] = {}
        if trained is None:
            assert self._batch is not None
            trained = self._learning.step(self._batch.groups, step, self._state.updates)
            metrics = self._batch.metrics | {"time/wait_for_groups_seconds": self._wait_seconds}
        learned = time.perf_counter()
        self._publisher.after(step, self._length.steps)
        ended = time.perf_counter()
        metrics |= trained.metrics | {
            "time/publish_seconds": ended - learned,
            "time/step_seconds": ended - started + metrics.get("time/wait_for_groups_seconds", 0.0),
        }
        updates = self._state.updates + trained.updates
        state = self._learning.state(step, updates, self._state.position)
        return Stepped(replace(state, taken=self._intake.owed, shift=self._intake.shift), metrics)

    def _evaluate(self, step: int) -> dict[str, float]:
        return {}

    def _snapshot(self) -> Snapshots:
        learned, versions = self._learning.snapshot(), self._publisher.snapshot()
        return learned if versions is None else learned.beside(SAVED, versions)

    def _once_kept(self) -> Callable[[], None]:
        return partial(self._intake.acknowledge, self._intake.hand_over(self._state.taken))
