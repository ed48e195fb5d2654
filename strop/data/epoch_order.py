"""The order of tasks over epochs, which a seed determines and one number resumes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from strop.errors import DataError

IndexArray = npt.NDArray[np.int64]


class EpochOrder:
    """Epochs over `tasks` tasks, taken in steps; `position` is the whole state.

    The order of each epoch is a function of (seed, epoch). A step never crosses the end of an epoch:
    remaining tasks that do not fill a step are dropped, or make a smaller step.
    """

    def __init__(
        self,
        tasks: int,
        *,
        seed: int,
        shuffle: bool,
        incomplete: Literal["drop", "keep"],
        name: str = "train",
    ) -> None:
        self.tasks = tasks
        self.position = 0
        """Number of tasks passed since the start: taken, or dropped at the end of an epoch."""
        self._seed = seed
        self._shuffle = shuffle
        self._incomplete = incomplete
        self._name = name
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

    def _of_epoch(self, epoch: int) -> IndexArray:
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = (
                epoch,
                epoch_permutation(self.tasks, self._seed, epoch) if self._shuffle else np.arange(self.tasks),
            )
        return self._permutation[1]


def epoch_permutation(n: int, seed: int, epoch: int) -> IndexArray:
    """[n] The order of an epoch: the ranks of n raw draws of Philox (Salmon et al., SC 2011).

    NumPy guarantees that raw draws are the same in every version, unlike its shuffles, so a run can be
    resumed after an upgrade. Equal 64-bit draws keep the tasks' original order.
    """
    draws = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(n)
    return np.argsort(draws, kind="stable")
