"""The order of tasks over epochs, which a seed determines and one number resumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from strop.errors import DataError

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """Result of one group of rollouts of a task."""

    index: int
    """Index of the task in its taskset."""
    rewards: tuple[float, ...]
    """Rewards of the group's scored rollouts; empty if all of them failed."""


class TaskOrder(Protocol):
    """Order in which the tasks of a taskset are taken. `position` and `state` are saved in checkpoints."""

    position: int
    """Number of tasks passed since the start."""

    def take(self, n: int) -> IndexArray:
        """Indices of the next step of `n` tasks. Raises `DataError` if the taskset is too small for one."""
        ...

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` tasks in one epoch. Raises `DataError` if there is none."""
        ...

    def observe(self, outcomes: Sequence[TaskOutcome]) -> None:
        """Called with the results of tasks that were taken, in the order in which they were taken."""

    @property
    def state(self) -> Mapping[str, Any] | None:
        """State in addition to `position`, as JSON values; None for an order without feedback."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state` that is not None."""

    def metrics(self) -> dict[str, float]:
        """Metrics of the tasks taken last; none for an order without feedback."""
        ...


class EpochOrder:
    """Epochs over `tasks` tasks, taken in steps; `position` is the whole state.

    The order of each epoch is a function of (seed, epoch). A step never crosses the end of an epoch:
    remaining tasks that do not fill a step are dropped, or make a smaller step.
    """

    state = None

    def __init__(
        self,
        tasks: int,
        *,
        seed: int,
        shuffle: bool,
        incomplete: Literal["drop", "keep"],
        name: str = "train",
        ranks: IndexArray | None = None,
    ) -> None:
        """`ranks` [tasks]: tasks of a lower rank come first in each epoch; None if all ranks are equal."""
        self.tasks = tasks
        self.position = 0
        """Number of tasks passed since the start: taken, or dropped at the end of an epoch."""
        self._seed = seed
        self._shuffle = shuffle
        self._incomplete = incomplete
        self._name = name
        self._ranks = ranks
        self._permutation: tuple[int, IndexArray] | None = None

    def take(self, n: int) -> IndexArray:
        """Indices of the next step of `n` tasks. Raises `DataError` if the taskset is too small for one."""
        self.steps_per_epoch(n)
        epoch, offset = divmod(self.position, self.tasks)
        if self._incomplete == "drop" and self.tasks - offset < n:
            epoch, offset = epoch + 1, 0
        taken = self._of_epoch(epoch)[offset : offset + n]
        self.position = epoch * self.tasks + offset + len(taken)
        return taken

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` tasks in one epoch. Raises `DataError` if there is none."""
        if self._incomplete == "keep":
            return -(-self.tasks // n)
        if n > self.tasks:
            raise DataError(
                f"The taskset {self._name} has {self.tasks} tasks, too few for one step of {n} "
                f"(trainer.tasks_per_step). Write {self.tasks} or fewer tasks per step, or "
                "data.incomplete_batch: keep to train on smaller steps."
            )
        return self.tasks // n

    def observe(self, outcomes: Sequence[TaskOutcome]) -> None:
        """Nothing: results do not change this order."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing: this order has no state but its position."""

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def _of_epoch(self, epoch: int) -> IndexArray:
        if self._permutation is None or self._permutation[0] != epoch:
            order = (
                epoch_permutation(self.tasks, self._seed, epoch) if self._shuffle else np.arange(self.tasks)
            )
            if self._ranks is not None:
                order = order[np.argsort(self._ranks[order], kind="stable")]
            self._permutation = (epoch, order)
        return self._permutation[1]


def epoch_permutation(n: int, seed: int, epoch: int) -> IndexArray:
    """[n] The order of an epoch: the ranks of n raw draws of Philox (Salmon et al., SC 2011).

    NumPy guarantees that raw draws are the same in every version, unlike its shuffles, so a run can be
    resumed after an upgrade. Equal 64-bit draws keep the tasks' original order.
    """
    draws = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(n)
    return np.argsort(draws, kind="stable")


def uniform_draws(n: int, seed: int, *key: int) -> npt.NDArray[np.float64]:
    """[n] Numbers between 0 and 1, without either, from raw draws of Philox; a function of (seed, key)."""
    draws = np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)).random_raw(n)
    return ((draws >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
