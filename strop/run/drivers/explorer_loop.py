"""Loop of an explorer process, and its variant for the style `fixed`: load weights, sample a step, put its groups.

Consumes    tasks, and versions of the weights from the synchronizer.
Waits for   the version that the next step is sampled with, and for free capacity in the buffer.
Unblocked   by the trainer's publication of weights, its `take` and its end; by a signal.
Produces    each step's groups in the buffer, and the end-of-data mark at the end.
"""

from __future__ import annotations

import time
from dataclasses import replace

from strop.protocols import Buffer
from strop.run.drivers.continuous_explorer import ContinuousExplorer
from strop.run.drivers.explorer_progress import ExplorerProgress, TrainerEnded
from strop.run.rollout.collector import Collector
from strop.run.rollout.group_ids import pad_groups
from strop.run.rollout.tasks import TrainTaskSource
from strop.run.state.explorer_state import ExplorerState
from strop.sync.staleness_policy import VersionWindow
from strop.sync.subscribe import Subscriber


class StepwiseExplorer:
    """Samples step after step, each with the version that its number determines."""

    def __init__(
        self,
        progress: ExplorerProgress,
        collector: Collector,
        tasks: TrainTaskSource,
        buffer: Buffer,
        subscriber: Subscriber,
        *,
        tasks_per_step: int,
        warmup_steps: int,
    ) -> None:
        self._progress = progress
        self._collector = collector
        self._tasks = tasks
        self._buffer = buffer
        self._subscriber = subscriber
        self._tasks_per_step = tasks_per_step
        self._warmup_steps = warmup_steps
        tasks.restore(progress.state.tasks_taken, progress.state.task_order)

    def run(self, last: int) -> None:
        """Sample up to step `last`. A step that was interrupted is sampled again, with the same result."""
        progress = self._progress
        while progress.state.step < last and not self._subscriber.trainer_has_finished(last):
            try:
                self._step(max(progress.state.step, self._warmup_steps) + 1)
            except TrainerEnded:
                continue

    def _step(self, step: int) -> None:
        progress = self._progress
        started = time.perf_counter()
        version = self._load_weights(step)
        loaded = time.perf_counter()
        progress.evaluate_if_due(version)
        began = time.perf_counter()
        collected = self._collector.collect(step)
        explored = time.perf_counter()
        groups = pad_groups(collected.learnable, step, self._tasks_per_step)
        self._buffer.put(groups)
        put = time.perf_counter()
        durations = {
            "sampled_version": float(version),
            "time/explore_seconds": explored - began,
            "time/buffer_write_seconds": put - explored,
            "time/wait_for_weights_seconds": loaded - started - self._subscriber.load_seconds,
            "time/load_weights_seconds": self._subscriber.load_seconds,
        }
        progress.record(step, collected.sampled, collected.metrics | durations)
        written = progress.state.groups_written + len(groups)
        progress.save(
            replace(
                progress.state,
                step=step,
                tasks_taken=self._tasks.position,
                task_order=self._tasks.order_state,
                groups_written=written,
                next_version=None,
            )
        )
        self._subscriber.after_step(step)

    def _load_weights(self, step: int) -> int:
        pinned = self._progress.state.next_version
        if pinned is not None:
            return self._subscriber.load_newest(VersionWindow(pinned, pinned))
        version = self._subscriber.before_step(step)
        self._progress.save(replace(self._progress.state, next_version=version))
        return version


def explore_to_end(
    progress: ExplorerProgress,
    loop: StepwiseExplorer | ContinuousExplorer,
    buffer: Buffer,
    subscriber: Subscriber,
    *,
    last: int,
    evaluates: bool,
    warmup_steps: int,
) -> ExplorerState:
    """Run an explorer's loop up to step `last`, with the evaluations before and after it."""
    if warmup_steps and progress.state.evaluated_version is None:
        progress.evaluate_if_due(0)
    loop.run(last)
    buffer.finish()
    if evaluates and progress.state.evaluated_version != last:
        progress.evaluate(subscriber.load_final(last))
    return progress.state
