"""Batch sources of the training loop: own rollouts, offline data, and demonstrations of an SFT warm-up.

`buffer_source.py` has the sources that read the buffer of a separate explorer process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from strop.data.offline_dataset import OfflineDataset
from strop.protocols import Buffer
from strop.run.optimize.updater import StepBatch
from strop.run.rollout.collector import Collector
from strop.run.rollout.rollout_metrics import training_metrics
from strop.run.rollout.tasks import TrainTaskSource
from strop.run.state.run_state import RunState
from strop.types import ExperienceGroup


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
