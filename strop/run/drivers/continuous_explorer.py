"""Loop of an explorer process under the styles `latest`, `on_request` and `bounded`: sample without step barriers.

Consumes    tasks, and versions of the weights from the synchronizer.
Waits for   completed rollouts, weights that the style allows, and free capacity in the buffer.
Unblocked   by the event loop of the rollouts; by the trainer's publication of weights, its `take` and its end; by a
            signal.
Produces    each group in the buffer as soon as it is scored, and the end-of-data mark at the end.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from strop.protocols import Buffer
from strop.run.drivers.explorer_progress import ExplorerProgress, TrainerEnded
from strop.run.rollout.collector import GroupSettings, learnable_groups
from strop.run.rollout.explorer import Explorer, PendingGroup, ScoredGroup, check_error_fraction
from strop.run.rollout.tasks import TrainTaskSource
from strop.sync.subscribe import Subscriber
from strop.types import RolloutGroup, Task

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
