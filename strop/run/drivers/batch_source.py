"""Batch sources of the training loop: own rollouts, the buffer of a separate explorer, offline data, demonstrations.

The sources that read a buffer train on each group once. A checkpoint holds the ids of the groups that the trainer is
done with since the previous checkpoint. Once the checkpoint is complete, they are acknowledged. A trainer that was
killed in between finds the ids in its checkpoint and discards the groups.
"""

from __future__ import annotations

import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from strop.buffer.queue_policy import oldest_version
from strop.config.schema.buffer import FixedStyleConfig, MemorySyncConfig, PriorityBufferConfig
from strop.config.schema.run import Run
from strop.config.schema.trainer import StalenessSelectionConfig
from strop.data.offline_dataset import OfflineDataset
from strop.errors import BufferExhausted, StoreError, WritersLostError
from strop.protocols import Buffer
from strop.run.optimize.policy_optimizer import StepBatch
from strop.run.rollout.collector import Collector
from strop.run.rollout.explorer import remove_padding, step_of_group
from strop.run.rollout.rollout_metrics import training_metrics
from strop.run.rollout.tasks import TrainTaskSource
from strop.run.state.run_state import RunState
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.types import ExperienceGroup
from strop.workers.files import AppendFile


class BatchSource(ABC):
    """Provides the training data of each step, and knows what of its position a checkpoint must hold."""

    wait_metric: ClassVar[str | None] = None
    """Metric for the seconds that `next_batch` took; None where the source measures its own work."""

    @abstractmethod
    def next_batch(self, step: int) -> StepBatch | None:
        """The data of step `step`; None where no more will come, so that the run ends early."""

    def load_state(self, state: RunState) -> None:  # noqa: B027  (a source may have no position)
        """Continue from a saved state."""

    def save_state(self, state: RunState) -> RunState:
        """The state with this source's fields set to their current values."""
        return state

    def mark_trained(self, batch: StepBatch) -> None:  # noqa: B027  (most have nothing to do)
        """Called once the updates on a batch are done."""

    def release(self, state: RunState) -> Callable[[], None]:
        """Called when `state` is being saved; the returned function is called once it is on disk."""
        return lambda: None

    def finish(self, state: RunState, steps: int) -> str | None:
        """Called at the end of the run of `steps` steps; returns a message for the user, if there is one."""
        return None


class RolloutSource(BatchSource):
    """Samples and scores each step's rollouts in this process."""

    def __init__(self, collector: Collector, tasks: TrainTaskSource, buffer: Buffer) -> None:
        """`tasks` is what `collector` takes its tasks from."""
        self._collector = collector
        self._tasks = tasks
        self._buffer = buffer

    def load_state(self, state: RunState) -> None:
        """Continue after the tasks taken so far."""
        self._tasks.restore(state.tasks_taken, state.task_order)

    def save_state(self, state: RunState) -> RunState:
        """The state with the number of tasks taken so far, and the state of their order."""
        return replace(state, tasks_taken=self._tasks.position, task_order=self._tasks.order_state)

    def next_batch(self, step: int) -> StepBatch:
        """Sample and score the rollouts of step `step`. Raises `RolloutError` where too many failed."""
        collected = self._collector.collect(step)
        self._buffer.put(collected.learnable)
        groups = self._buffer.take(len(collected.learnable))
        metrics = training_metrics(collected.sampled) | collected.metrics
        return StepBatch(groups, metrics, collected.sampled)

    def mark_trained(self, batch: StepBatch) -> None:
        """Acknowledge the batch's groups in the buffer."""
        self._buffer.acknowledge([group.id for group in batch.groups])


class OfflineSource(BatchSource):
    """Takes each step's rows from an offline dataset, for SFT and DPO."""

    def __init__(self, dataset: OfflineDataset, tasks_per_step: int) -> None:
        self._dataset = dataset
        self._tasks_per_step = tasks_per_step

    def load_state(self, state: RunState) -> None:
        """Continue after the rows taken so far."""
        self._dataset.position = state.tasks_taken

    def save_state(self, state: RunState) -> RunState:
        """The state with the number of rows taken so far."""
        return replace(state, tasks_taken=self._dataset.position)

    def next_batch(self, step: int) -> StepBatch:
        """The next `tasks_per_step` rows; fewer at an epoch's end under `data.incomplete_batch: keep`."""
        return StepBatch(self._dataset.take(self._tasks_per_step))


class WarmUpSource(BatchSource):
    """Takes each step's demonstrations, for the SFT warm-up of a run with rollouts.

    It has no state: the rows of an update are a function of the update's number.
    """

    def __init__(self, demonstrations: OfflineDataset, *, per_update: int, updates_per_step: int) -> None:
        self._demonstrations = demonstrations.rewound_copy()
        self._per_update = per_update
        self._updates_per_step = updates_per_step

    def next_batch(self, step: int) -> StepBatch:
        """The rows of all updates of step `step`."""
        first = (step - 1) * self._updates_per_step
        updates = [self._take(first + number) for number in range(self._updates_per_step)]
        groups = [group for update in updates for group in update]
        return StepBatch(groups, update_sizes=[len(update) for update in updates])

    def _take(self, update: int) -> list[ExperienceGroup]:
        """The rows of the warm-up's update `update`, from 0."""
        epoch, number = divmod(update, self._demonstrations.steps_per_epoch(self._per_update))
        self._demonstrations.position = epoch * len(self._demonstrations) + number * self._per_update
        return self._demonstrations.take(self._per_update)


log = logging.getLogger("strop.run")


class BufferSource(BatchSource):
    """Takes batches from a buffer, and records which groups no checkpoint accounts for yet."""

    wait_metric: ClassVar[str | None] = "time/wait_for_groups_seconds"

    def __init__(self, buffer: Buffer, tasks_per_step: int) -> None:
        self._buffer = buffer
        self._size = tasks_per_step
        self._pending_ack: list[str] = []
        self.group_offset = 0
        """See `RunState.group_offset`."""

    @property
    def unacknowledged(self) -> tuple[str, ...]:
        """Ids of the groups that the trainer is done with and that no checkpoint was saved for."""
        return tuple(self._pending_ack)

    def load_state(self, state: RunState) -> None:
        """Discard the groups that the state accounts for: they may not be acknowledged yet."""
        self._discard_trained(state.unacknowledged)
        self.group_offset = state.group_offset

    def save_state(self, state: RunState) -> RunState:
        """The state with the unacknowledged groups and the group offset."""
        return replace(state, unacknowledged=self.unacknowledged, group_offset=self.group_offset)

    def release(self, state: RunState) -> Callable[[], None]:
        """Hand over the groups that `state` accounts for; the returned function acknowledges them."""
        ids = state.unacknowledged
        del self._pending_ack[: len(ids)]
        return partial(self._buffer.acknowledge, ids)

    def finish(self, state: RunState, steps: int) -> str | None:
        """Acknowledge the groups dropped since the last checkpoint; says why the run ended early."""
        self._buffer.acknowledge(self.unacknowledged)
        if state.step < steps:
            return (
                f"The run ends after step {state.step} of {steps}: the explorer has finished and no group is "
                "left. Groups are taken in the order of arrival, so groups that were dropped or evicted, or "
                "had nothing to train on, leave fewer steps (groups/* in metrics.jsonl)."
            )
        queued = self._buffer.counts().queued
        return f"All steps are done; {queued} groups are left in the buffer." if queued else None

    def _discard_trained(self, ids: Sequence[str]) -> None:
        self._buffer.discard(ids)


class IncompleteSteps:
    """The groups of the incomplete steps that a run was trained on, in a file of JSON Lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.groups: dict[int, list[str]] = {}
        """Ids of the groups of each step."""
        if path.is_file():
            with closing(AppendFile(path)):  # removes a line that a killed process left incomplete
                lines = path.read_text(encoding="utf-8").splitlines()
            self.groups = {row["step"]: row["groups"] for row in map(json.loads, lines)}

    def record(self, step: int, groups: list[str]) -> None:
        """Write the groups of a step. Raises `RunFolderError` where the file cannot be written."""
        self.groups[step] = groups
        row = json.dumps({"step": step, "groups": groups}) + "\n"
        with reporting_write_errors(self._path), closing(AppendFile(self._path)) as file:
            file.append(row.encode())
            file.sync()


class StepSource(BufferSource):
    """Takes the groups of one explorer step after the other: the same batches, whatever the timing.

    Under `buffer.on_timeout: train` a step may be incomplete. Its groups are written to the run folder before they are
    trained on, so that a killed run repeats the step with the same ones; those that come later are dropped.
    """

    def __init__(
        self, buffer: Buffer, tasks_per_step: int, *, incomplete: IncompleteSteps | None = None
    ) -> None:
        """`incomplete` records the incomplete steps that are trained on; None refuses them."""
        super().__init__(buffer, tasks_per_step)
        self._incomplete = incomplete

    def next_batch(self, step: int) -> StepBatch:
        """All groups of step `step`; under `buffer.on_timeout: train` those that arrived.

        Raises `StoreError` where only some of them arrive or, under `train`, none within twice the timeout, or groups
        of another step; and `BufferExhausted` where the explorer ended before that step.
        """
        if self._incomplete is not None:
            return self._arrived(step, self._incomplete)
        taken = self._buffer.take(self._size)
        if len(taken) < self._size:
            raise StoreError(
                f"Only {len(taken)} of the {self._size} groups of step {step} arrived within "
                "buffer.read_timeout_seconds, so the trainer stops; nothing is lost. Check that the explorer "
                "is running. If its steps take longer, increase `buffer.read_timeout_seconds`; "
                "`buffer.on_timeout: train` trains on the groups that arrived."
            )
        self._require_step(taken, step)
        self._pending_ack += [group.id for group in taken]
        return StepBatch(remove_padding(taken))

    def _arrived(self, step: int, incomplete: IncompleteSteps) -> StepBatch:
        repeated = incomplete.groups.get(step)
        size = self._size if repeated is None else len(repeated)
        batch: list[ExperienceGroup] = []
        late: list[str] = []
        while len(batch) < size:
            wanted = size - len(batch)
            taken = self._buffer.take(wanted)
            if not taken and not batch:
                taken = _take_once_more(self._buffer, wanted, step)
            late += [group.id for group in taken if step_of_group(group.id) < step]
            batch += [group for group in taken if step_of_group(group.id) >= step]
            if len(taken) < wanted:
                break
        if not batch:
            raise _nothing_arrived(step)
        self._require_step(batch, step)
        if len(batch) < self._size and repeated is None:
            incomplete.record(step, [group.id for group in batch])
            log.warning(
                "Step %d is trained on %d of its %d groups, which arrived within buffer.read_timeout_seconds.",
                step,
                len(batch),
                self._size,
            )
        self._pending_ack += [*late, *(group.id for group in batch)]
        return StepBatch(
            remove_padding(batch),
            {
                "groups/trained": float(len(remove_padding(batch))),
                "groups/missing": float(self._size - len(batch)),
                "groups/late_dropped": float(len(late)),
            },
        )

    def _require_step(self, groups: Sequence[ExperienceGroup], step: int) -> None:
        others = sorted({step_of_group(group.id) for group in groups} - {step})
        if others:
            raise StoreError(
                f"The trainer's next step is {step}, and the buffer gave groups of step {others[0]}: "
                "explorer and trainer are not of one run, or their trainer.tasks_per_step differ. Start "
                "both with the same run file, or give this run a `buffer.name` of its own."
            )


class ArrivalSource(BufferSource):
    """Takes the next groups in the buffer's order, whatever explorer step they were sampled in.

    A batch that is incomplete after the timeout is trained on as it is. Stale groups are dropped, and
    newer ones fill the batch.
    """

    def __init__(
        self,
        buffer: Buffer,
        tasks_per_step: int,
        *,
        read_timeout_seconds: float,
        max_staleness: int | None,
        report_shortfall: Callable[[int], None],
        first_step: int = 1,
        waits_once_more: bool = False,
    ) -> None:
        """
        Args:
            buffer: the buffer that the explorer fills.
            tasks_per_step: number of groups in a batch.
            read_timeout_seconds: maximum wait for a batch.
            max_staleness: drop groups that are more steps old; None keeps all.
            report_shortfall: sends the new `group_offset` to the explorer.
            first_step: the run's first step with rollouts.
            waits_once_more: wait a second time for a batch of which no group arrived.
        """
        super().__init__(buffer, tasks_per_step)
        self._report_shortfall = report_shortfall
        self._read_timeout_seconds = read_timeout_seconds
        self._max_staleness = max_staleness
        self._first_step = first_step
        self._waits_once_more = waits_once_more
        self._evicted = buffer.counts().evicted

    def next_batch(self, step: int) -> StepBatch | None:
        """The next groups; None where the explorer has finished and none is left.

        Raises `StoreError` where no group arrives within `buffer.read_timeout_seconds`, or the whole run
        had none, and `WritersLostError` where the explorer disappeared before it finished.
        """
        deadline = time.monotonic() + self._read_timeout_seconds
        batch: list[ExperienceGroup] = []
        stale_count = 0
        while len(batch) < self._size:
            missing, left = self._size - len(batch), max(0.0, deadline - time.monotonic())
            try:
                groups = self._buffer.take(missing, timeout_seconds=left)
                if not groups and not batch and self._waits_once_more:
                    groups = _take_once_more(self._buffer, missing, step)
            except WritersLostError:
                raise
            except BufferExhausted:
                break
            stale = [group.id for group in groups if self._is_stale(group, step)]
            if stale:
                self._drop(stale)
                self._add_offset(-len(stale))
            batch += [group for group in groups if group.id not in stale]
            stale_count += len(stale)
            if len(groups) < missing and batch:
                break
            if not groups:
                raise _nothing_arrived(step)
        if not batch:
            self._check_not_first(step)
            return None
        self._pending_ack += [group.id for group in batch]
        metrics = self._metrics(batch) | {"groups/stale_dropped": float(stale_count)}
        not_new = metrics["groups/missing"] + metrics.get("groups/reused", 0.0)
        self._add_offset(int(not_new - metrics["groups/evicted"]))
        return StepBatch(batch, metrics)

    def _drop(self, ids: Sequence[str]) -> None:
        """Acknowledge them with the next checkpoint: a run resumed from an older one decides again."""
        self._pending_ack += ids

    def _add_offset(self, groups: int) -> None:
        if groups:
            self.group_offset += groups
            self._report_shortfall(self.group_offset)

    def _is_stale(self, group: ExperienceGroup, step: int) -> bool:
        return self._max_staleness is not None and step - 1 - oldest_version(group) > self._max_staleness

    def _metrics(self, batch: Sequence[ExperienceGroup]) -> dict[str, float]:
        counts = self._buffer.counts()
        evicted, self._evicted = max(0, counts.evicted - self._evicted), counts.evicted
        return {
            "groups/trained": float(len(batch)),
            "groups/missing": float(self._size - len(batch)),
            "groups/evicted": float(evicted),
            "groups/queued": float(counts.queued),
        }

    def _check_not_first(self, step: int) -> None:
        if step == self._first_step:
            raise StoreError(
                "The explorer has finished without a single group to train on. The explorer's metrics.jsonl "
                "says what became of its rollouts (rollouts/error_fraction, groups/filtered)."
            )


def _take_once_more(buffer: Buffer, groups: int, step: int) -> list[ExperienceGroup]:
    """Wait for groups as long as before, after a wait in which none arrived."""
    log.warning(
        "No group for step %d arrived within buffer.read_timeout_seconds; the trainer waits for them once more.",
        step,
    )
    return buffer.take(groups)


def _nothing_arrived(step: int) -> StoreError:
    return StoreError(
        f"No usable group for step {step} arrived within buffer.read_timeout_seconds, so the trainer stops; nothing is "
        "lost. Check that the explorer is running. If its steps take longer, increase `buffer.read_timeout_seconds`."
    )


class ReplaySource(ArrivalSource):
    """Takes groups like `ArrivalSource`, from a buffer that gives a group more than once."""

    _seen: frozenset[str] = frozenset()

    def _discard_trained(self, ids: Sequence[str]) -> None:
        """Keep them: they may be trained on again in any case."""

    def _drop(self, ids: Sequence[str]) -> None:
        """Discard them at once: acknowledged groups would come again."""
        self._buffer.discard(ids)

    def _metrics(self, batch: Sequence[ExperienceGroup]) -> dict[str, float]:
        ids = frozenset(group.id for group in batch)
        again, self._seen = len(ids & self._seen), self._seen | ids
        return super()._metrics(batch) | {"groups/reused": float(again)}


def open_buffer_source(
    run: Run, buffer: Buffer, folder: RunFolder, report_shortfall: Callable[[int], None]
) -> BufferSource:
    """The source for the run's synchronizer style: by step under `fixed`, else by arrival."""
    assert not isinstance(run.synchronizer, MemorySyncConfig)
    size, selection = run.trainer.tasks_per_step, run.trainer.batch_selection
    trains_incomplete = run.buffer.on_timeout == "train"
    if isinstance(run.synchronizer.style, FixedStyleConfig):
        incomplete = IncompleteSteps(folder.incomplete_steps) if trains_incomplete else None
        return StepSource(buffer, size, incomplete=incomplete)
    reuses = isinstance(run.buffer, PriorityBufferConfig) and run.buffer.reuse_cooldown_seconds is not None
    max_staleness = (
        int(selection.max_staleness.count) if isinstance(selection, StalenessSelectionConfig) else None
    )
    return (ReplaySource if reuses else ArrivalSource)(
        buffer,
        size,
        read_timeout_seconds=run.buffer.read_timeout_seconds,
        max_staleness=max_staleness,
        report_shortfall=report_shortfall,
        first_step=run.trainer.warmup_steps + 1,
        waits_once_more=trains_incomplete,
    )
