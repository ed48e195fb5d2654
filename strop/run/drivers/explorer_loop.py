"""Loops of an explorer process: without step barriers, and step by step for the style `fixed`.

Consumes    tasks, and versions of the weights from the synchronizer.
Waits for   weights that the style allows (`fixed`: the version that the next step is sampled with), completed rollouts,
            and free capacity in the buffer.
Unblocked   by the event loop of the rollouts; by the trainer's publication of weights, its `take` and its end; by a
            signal.
Produces    each group in the buffer as soon as it is scored (`fixed`: each step's groups), and the end-of-data mark.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from strop.config.schema.run import Run
from strop.config.units import Amount
from strop.protocols import Buffer
from strop.run.drivers.evaluation import Evaluator, evaluate
from strop.run.recording.recorder import Recorder
from strop.run.rollout.collector import Collector, GroupSettings, learnable_groups
from strop.run.rollout.explorer import Explorer, PendingGroup, ScoredGroup, check_error_fraction, pad_groups
from strop.run.rollout.rollout_metrics import training_metrics
from strop.run.rollout.tasks import EvalTasksets, TrainTaskSource
from strop.run.state.horizon import Horizon
from strop.run.state.run_state import ExplorerState, RunState
from strop.runs.folder import RunFolder
from strop.sync.staleness_policy import VersionWindow
from strop.sync.subscribe import Subscriber
from strop.types import RolloutGroup, Task


class TrainerEnded(Exception):
    """Raised by a wait for free capacity in the buffer: the trainer has ended and will take no more groups."""


class ExplorerProgress:
    """Saves the explorer's state, evaluates versions of the weights, and records steps."""

    def __init__(
        self,
        run: Run,
        explorer: Explorer,
        tasksets: EvalTasksets,
        state: ExplorerState,
        horizon: Horizon,
        folder: RunFolder,
        recorder: Recorder,
        sampler_metrics: Callable[[], Mapping[str, float]],
    ) -> None:
        """`folder` is the explorer's own; `sampler_metrics` returns those of the sampler since its last call."""
        self.state = state
        self._run = run
        self._tasksets = tasksets
        self._evaluator = Evaluator(lambda step: evaluate(run, explorer, tasksets, step=step), recorder)
        self._horizon = horizon
        self._folder = folder
        self._recorder = recorder
        self._sampler_metrics = sampler_metrics

    def save(self, state: ExplorerState) -> None:
        """Replace the state, on disk too."""
        state.save(self._folder)
        self.state = state

    def evaluate_if_due(self, version: int) -> None:
        """Evaluate the weights that the sampler has, if the `evaluate` section schedules it.

        Versions come in increasing order, with gaps.
        """
        if not self._tasksets:
            return
        evaluated = self.state.evaluated_version
        if evaluated is None and version == 0:
            due = self._run.evaluate.at_start
        else:
            due = self._is_due(self._run.evaluate.every, evaluated or 0, version)
        if due:
            self.evaluate(version)

    def evaluate(self, version: int) -> None:
        """Evaluate the weights that the sampler has, and record the result."""
        self._evaluator.evaluate(version)
        self.save(replace(self.state, evaluated_version=version))

    def record(self, step: int, sampled: Sequence[RolloutGroup], metrics: dict[str, float]) -> None:
        """Record a step's rollouts and metrics; `metrics` has its durations."""
        section = self._run.record
        is_end = step in (1 + self._run.trainer.warmup_steps, self._horizon.steps)
        is_due = self._is_due(section.rollouts_every, step - 1, step)
        all_due = is_due or (section.first_and_last_rollouts and is_end)
        if groups := self._recorder.groups_to_write(step, sampled, all_due=all_due):
            self._recorder.log_rollouts(step, groups)
        metrics = {**training_metrics(sampled), **self._sampler_metrics(), **metrics}
        seconds = metrics["time/explore_seconds"]
        metrics["tokens_per_second"] = metrics.get("sampled_tokens", 0.0) / seconds
        self._recorder.log_step(step, metrics)

    def _is_due(self, every: Amount | None, before: int, after: int) -> bool:
        return self._horizon.is_due(every, self._at(before), self._at(after))

    def _at(self, step: int) -> RunState:
        return RunState(step, step * self._horizon.updates_per_step)


_POLL_SECONDS = 0.1


class ContinuousExplorer:
    """Keeps a constant number of rollouts in flight, across steps.

    A step is the accounting unit of tasks, metrics and evaluations: its groups may be sampled with different
    versions, and groups of later steps may be complete before it. After a kill, the groups beyond the last
    recorded step are sampled again for their metrics; those that are in the buffer are not put again.
    """

    def __init__(
        self,
        progress: ExplorerProgress,
        settings: GroupSettings,
        explorer: Explorer,
        tasks: TrainTaskSource,
        buffer: Buffer,
        subscriber: Subscriber,
        *,
        warmup_steps: int,
    ) -> None:
        self._progress = progress
        self._settings = settings
        self._explorer = explorer
        self._tasks = tasks
        self._buffer = buffer
        self._subscriber = subscriber
        self._recorded = max(progress.state.step, warmup_steps)
        self._steps: deque[_OpenStep] = deque()
        self._pending: dict[PendingGroup, int] = {}
        """Groups in flight, and the version of the weights that each was started with."""
        self._events: queue.SimpleQueue[None] = queue.SimpleQueue()
        limit = explorer.max_concurrent_rollouts
        self._max_rollouts = limit or settings.tasks_per_step * settings.rollouts_per_group
        groups = max(settings.tasks_per_step, -(-self._max_rollouts // settings.rollouts_per_group))
        self._max_groups = 2 * groups
        """Groups that may be sampled or scored at once: a slow reward holds up sampling only then."""
        self._last_record = time.perf_counter()
        tasks.restore(progress.state.tasks_taken, progress.state.task_order)

    def run(self, last: int) -> None:
        """Sample up to step `last`. Once the trainer has finished, only the open steps are completed."""
        try:
            while self._recorded < last:
                if self._subscriber.trainer_has_finished(last):
                    last = self._recorded + len(self._steps)
                self._start_groups(last)
                self._wait_for_event()
                self.handle_completed()
        except TrainerEnded:
            return
        finally:
            self._explorer.cancel(list(self._pending))

    def handle_completed(self) -> None:
        """Put the groups that are complete, and record the steps that are. Also called while waiting for
        weights. Raises `Interrupted` if a stop was requested."""
        self._explorer.check()
        while not self._events.empty():
            self._events.get()
        for group in [group for group in self._pending if group.result.done()]:
            scored = group.result.result()
            del self._pending[group]
            self._complete_group(group, scored)
        while self._steps and self._steps[0].is_complete(self._settings):
            self._record(self._steps.popleft())

    def _start_groups(self, last: int) -> None:
        """Start groups until enough rollouts are in flight, or the next one has to wait."""
        while self._has_capacity():
            step = self._open_step(last)
            if step is None or not self._can_start():
                return
            number, task = step.waiting.popleft()
            pending = PendingGroup(task, step.number, number, self._settings.rollouts_per_group)
            self._start(step, pending)

    def _start(self, step: _OpenStep, pending: PendingGroup) -> None:
        step.pending.add(pending.number)  # the step is not complete, whatever completes in the wait
        before, started = self._subscriber.version, time.perf_counter()
        version = self._subscriber.before_batch(
            step.number, self._groups_ahead, self._settings.tasks_per_step, check=self.handle_completed
        )
        if version != before:
            step.load_seconds += self._subscriber.load_seconds
            started += self._subscriber.load_seconds
        step.wait_seconds += max(0.0, time.perf_counter() - started)
        self._progress.evaluate_if_due(version)
        if step.version is None:
            step.version, step.started = version, time.perf_counter()
        self._pending[pending] = version
        self._explorer.start_group(
            pending,
            self._settings.rollouts_per_task,
            self._settings.sampling,
            self._settings.greedy,
            lambda: self._events.put(None),
        )

    def _has_capacity(self) -> bool:
        sampling = sum(group.rollouts_sampling for group in self._pending)
        return sampling < self._max_rollouts and len(self._pending) < self._max_groups

    def _can_start(self) -> bool:
        """Whether one more group leaves every group in flight within its staleness limit.

        In the worst case a group in flight is trained on after all others that are in flight.
        """
        lowest = self._subscriber.lowest_version(self._groups_ahead(), self._settings.tasks_per_step)
        return all(version >= lowest for version in self._pending.values())

    def _groups_ahead(self) -> int:
        """Groups that the trainer may take before one that starts now: those written and those in flight."""
        written = self._progress.state.written_ahead
        in_flight = sum(group.id not in written for group in self._pending)
        return self._progress.state.groups_written + in_flight

    def _open_step(self, last: int) -> _OpenStep | None:
        """The step whose task is sampled next; None if there is no task yet."""
        newest = self._steps[-1] if self._steps else None
        if newest is not None and newest.waiting:
            return newest
        if newest is not None and not newest.needs_no_tasks(self._settings):
            if newest.pending:  # its tries depend on these
                return None
            return newest if self._take(newest) else None
        number = self._recorded + len(self._steps) + 1
        if number > last:
            return None
        step = _OpenStep(number)
        if not self._take(step):
            return None
        self._steps.append(step)
        return step

    def _take(self, step: _OpenStep) -> bool:
        """Take tasks for a step: all of it, or replacements for filtered groups."""
        tasks = self._tasks.take(self._settings.tasks_per_step - step.learnable)
        step.add_tasks(tasks, self._tasks.position)
        return bool(tasks)

    def _complete_group(self, pending: PendingGroup, scored: ScoredGroup) -> None:
        step = self._steps[pending.step - self._recorded - 1]
        (group,) = learnable_groups([scored], self._settings)
        step.complete(pending, scored, learnable=group is not None)
        state = self._progress.state
        if group is None or not group.experiences or group.id in state.written_ahead:
            return
        started = time.perf_counter()
        self._buffer.put([group])
        step.put_seconds += time.perf_counter() - started
        self._progress.save(
            replace(
                self._progress.state,
                groups_written=state.groups_written + 1,
                written_ahead=(*state.written_ahead, group.id),
            )
        )

    def _record(self, step: _OpenStep) -> None:
        now = time.perf_counter()
        sampled = [step.scored[number].group for number in sorted(step.scored)]
        greedy = [scored.greedy for scored in step.scored.values() if scored.greedy is not None]
        for groups in (sampled, greedy):
            check_error_fraction(groups, self._settings.max_error_fraction)
        assert step.version is not None
        metrics = {
            "sampled_version": float(step.version),
            "time/explore_seconds": now - self._last_record,
            "time/sample_seconds": step.sampled - step.started,
            "time/reward_seconds": step.completed - step.sampled,
            "time/buffer_write_seconds": step.put_seconds,
            "time/wait_for_weights_seconds": step.wait_seconds,
            "time/load_weights_seconds": step.load_seconds,
        }
        if self._settings.filters_groups:
            metrics["groups/filtered"] = float(len(sampled) - step.learnable)
        metrics |= self._settings.pipeline.take_metrics()
        self._progress.record(step.number, sampled, metrics)
        self._last_record = now
        self._recorded = step.number
        state = self._progress.state
        ids = _group_ids(sampled)
        self._progress.save(
            replace(
                state,
                step=step.number,
                tasks_taken=step.position,
                next_version=None,
                written_ahead=tuple(id for id in state.written_ahead if id not in ids),
            )
        )
        self._subscriber.after_step(step.number)

    def _wait_for_event(self) -> None:
        try:
            self._events.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return


class _OpenStep:
    """A step of which not all groups are complete."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tries = 0
        self.waiting: deque[tuple[int, Task]] = deque()
        """Tasks that are taken and not started, with their numbers."""
        self.pending: set[int] = set()
        """Numbers of the groups in flight."""
        self.scored: dict[int, ScoredGroup] = {}
        """Complete groups by number."""
        self.learnable = 0
        """Number of complete groups that are not filtered."""
        self.position = 0
        """Position of the task source after this step's tasks."""
        self.version: int | None = None
        """Version that the step's first group was started with."""
        self.started = self.sampled = self.completed = 0.0
        self.wait_seconds = self.load_seconds = self.put_seconds = 0.0

    def add_tasks(self, tasks: Sequence[Task], position: int) -> None:
        """Add tasks, numbered after those that the step has already; none if they are not there yet."""
        if tasks:
            first = len(self.scored)
            self.waiting.extend(enumerate(tasks, start=first))
            self.tries += 1
            self.position = position

    def needs_no_tasks(self, settings: GroupSettings) -> bool:
        """Whether all tasks of the step are taken; groups in flight may still be filtered."""
        return self.tries >= settings.max_tries or self.learnable == settings.tasks_per_step

    def is_complete(self, settings: GroupSettings) -> bool:
        """Whether all groups of the step are complete."""
        return not self.waiting and not self.pending and self.needs_no_tasks(settings)

    def complete(self, pending: PendingGroup, scored: ScoredGroup, *, learnable: bool) -> None:
        """Note that a group is complete."""
        self.pending.remove(pending.number)
        self.scored[pending.number] = scored
        self.learnable += learnable
        self.sampled = max(self.sampled, pending.sampled)
        self.completed = max(self.completed, pending.completed)


def _group_ids(groups: Sequence[RolloutGroup]) -> frozenset[str]:
    return frozenset(group.id for group in groups)


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
