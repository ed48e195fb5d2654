"""The explorer's loop where the trainer is a process of its own: fetch weights, sample, score, put.

Consumes    tasks, and versions of the weights from the synchronizer.
Waits for   a version that its next step may be sampled with, and for room in the buffer.
Unblocked   by the trainer's `publish`, its `take` and its end; by a signal.
Gives       each step's groups to the buffer, and at the end its word that no more will come.
"""

from __future__ import annotations

import time
from dataclasses import replace

from strop.config.schema import Run
from strop.config.schema.synchronizer import Fixed, MemorySync
from strop.protocols import Buffer
from strop.run.apart.explore_state import ExploreState
from strop.run.apart.step_groups import padded
from strop.run.collect import Collected, Collector
from strop.run.evaluate import evaluate
from strop.run.explorer import Explorer
from strop.run.folder import RunFolder, RunState
from strop.run.length import Length
from strop.run.records.record import Recorder
from strop.run.rollout_metrics import training_metrics
from strop.run.tasks import Tasks
from strop.sync.publish import Subscriber
from strop.sync.style import Window
from strop.types import ExperienceGroup


class TrainerEnded(Exception):
    """Raised by a wait for room in the buffer: nobody will make any more."""


class ExploreDriver:
    """Explores from a state to the end of the run."""

    def __init__(
        self,
        run: Run,
        explorer: Explorer,
        collector: Collector,
        tasks: Tasks,
        buffer: Buffer,
        subscriber: Subscriber,
        state: ExploreState,
        length: Length,
        folder: RunFolder,
        recorder: Recorder,
    ) -> None:
        """`folder` is the explorer's own."""
        self._run = run
        self._explorer = explorer
        self._collector = collector
        self._tasks = tasks
        self._buffer = buffer
        self._subscriber = subscriber
        self._state = state
        self._length = length
        self._folder = folder
        self._recorder = recorder
        tasks.train.position = state.position
        assert not isinstance(run.synchronizer, MemorySync)
        self._by_step = isinstance(run.synchronizer.style, Fixed)
        self._first = run.trainer.warm_up_steps

    def run(self) -> ExploreState:
        """Go to the end. What was interrupted in a step does it again, and adds nothing twice."""
        last = self._length.steps
        if self._first and self._state.measured is None and self._is_measured_now(0):
            self._measure(0)
            self._keep(self._state)
        while self._state.step < last and not self._subscriber.has_ended(last):
            self._step(max(self._state.step, self._first) + 1)
        self._buffer.finish()
        if self._tasks.eval and self._state.measured != last:
            self._measure(self._subscriber.take_last(last))
            self._keep(self._state)
        return self._state

    def _step(self, step: int) -> None:
        started = time.perf_counter()
        version = self._fetch(step)
        fetched = time.perf_counter()
        if self._is_measured_now(version):
            self._measure(version)
        began = time.perf_counter()
        collected = self._collector.collect(step)
        explored = time.perf_counter()
        groups = self._groups(collected, step)
        try:
            self._buffer.put(groups)
        except TrainerEnded:
            return
        put = time.perf_counter()
        metrics = training_metrics(collected.sampled) | collected.metrics
        metrics |= {
            "sampled_version": float(version),
            "tokens_per_second": metrics.get("sampled_tokens", 0.0) / (explored - began),
            "time/explore_seconds": explored - began,
            "time/put_seconds": put - explored,
            "time/wait_for_weights_seconds": fetched - started - self._subscriber.load_seconds,
            "time/load_weights_seconds": self._subscriber.load_seconds,
        }
        if self._length.is_due(self._run.record.rollouts_every, self._at(step - 1), self._at(step)):
            self._recorder.rollouts(step, collected.sampled)
        self._recorder.step(step, metrics)
        put_so_far = self._state.groups + len(groups)
        position = self._tasks.train.position
        self._keep(replace(self._state, step=step, position=position, groups=put_so_far, version=None))
        self._subscriber.after(step)

    def _groups(self, collected: Collected, step: int) -> list[ExperienceGroup]:
        """What goes into the buffer: a step's worth where the trainer takes steps, else what can be learned
        from."""
        if self._by_step:
            return padded(collected.learnable, step, self._run.trainer.tasks_per_step)
        return [group for group in collected.learnable if group.experiences]

    def _fetch(self, step: int) -> int:
        if self._state.version is not None:
            return self._subscriber.take(Window(self._state.version, self._state.version))
        version = (
            self._subscriber.before(step)
            if self._by_step
            else self._subscriber.before_groups(step, self._state.groups, self._run.trainer.tasks_per_step)
        )
        self._keep(replace(self._state, version=version))
        return version

    def _is_measured_now(self, version: int) -> bool:
        """The weights pass through here one version after the other, but not each of them."""
        if not self._tasks.eval:
            return False
        measured = self._state.measured
        if measured is None and version == 0:
            return self._run.evaluate.at_start
        return self._length.is_due(self._run.evaluate.every, self._at(measured or 0), self._at(version))

    def _measure(self, version: int) -> None:
        evaluation = evaluate(self._run, self._explorer, self._tasks.eval, step=version)
        for name, groups in evaluation.groups.items():
            self._recorder.evaluation(name, version, groups)
        self._recorder.step(version, evaluation.metrics)
        self._state = replace(self._state, measured=version)

    def _at(self, step: int) -> RunState:
        return RunState(step, step * self._length.updates_per_step)

    def _keep(self, state: ExploreState) -> None:
        state.save(self._folder)
        self._state = state
