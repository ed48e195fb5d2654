"""In which order tasks are taken, and what an epoch is."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from strop.errors import DataError

Indices = npt.NDArray[np.int64]


class Order:
    """Epochs over `tasks` tasks, taken in steps; `position` is all its state.

    Each epoch has an order of its own, a function of (seed, epoch) alone. A step never reaches
    over an epoch's end: the tasks left there that fill no step are dropped, or make a smaller one.
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
        """Tasks gone past since the start: taken, or dropped at an epoch's end."""
        self._seed = seed
        self._shuffle = shuffle
        self._incomplete = incomplete
        self._name = name
        self._permutation: tuple[int, Indices] | None = None

    def take(self, n: int) -> Indices:
        """The next step of `n` tasks. Raises `DataError` where no step of that size can be filled."""
        self.steps_per_epoch(n)
        epoch, offset = divmod(self.position, self.tasks)
        if self._incomplete == "drop" and self.tasks - offset < n:
            epoch, offset = epoch + 1, 0
        taken = self._of_epoch(epoch)[offset : offset + n]
        self.position = epoch * self.tasks + offset + len(taken)
        return taken

    def steps_per_epoch(self, n: int) -> int:
        """Steps of `n` tasks in one epoch. Raises `DataError` where that is none."""
        if self._incomplete == "keep":
            return -(-self.tasks // n)
        if n > self.tasks:
            raise DataError(
                f"The taskset {self._name} has {self.tasks} tasks, too few for one step of {n} "
                f"(trainer.tasks_per_step). Write {self.tasks} tasks per step or fewer, or "
                "data.incomplete_batch: keep to train on smaller steps."
            )
        return self.tasks // n

    def _of_epoch(self, epoch: int) -> Indices:
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = (
                epoch,
                permutation(self.tasks, self._seed, epoch) if self._shuffle else np.arange(self.tasks),
            )
        return self._permutation[1]


def permutation(n: int, seed: int, epoch: int) -> Indices:
    """[n] The order of an epoch: the ranks of n raw draws of Philox (Salmon et al., SC 2011).

    NumPy promises that raw draws stay the same in every version, unlike its shuffles, so that a run
    can be resumed after an upgrade. A tie among 64-bit draws keeps the tasks' own order.
    """
    draws = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(epoch,))).random_raw(n)
    return np.argsort(draws, kind="stable")
