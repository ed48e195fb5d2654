"""Mixtures of tasksets: draws by weight, a function of seed and position, and tasksets that are read as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from strop.config.schema.run import Run
from strop.data.task_order import EpochOrder, IndexArray, TaskOrder, TaskOutcome
from strop.errors import DataError
from strop.types import RolloutGroup, Task

if TYPE_CHECKING:
    from strop.data.taskset import TaskSet

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Odd integer next to 2^64 divided by the golden ratio."""
_COUNTED = 1 << 20


class MixtureOrder:
    """Draws from several tasksets in proportion to weights; `position` is the whole state.

    Draw `p` belongs to the taskset in whose part of [0, 1) the number (offset + p * golden ratio) mod 1 lies. This
    sequence is so even that any `n` consecutive draws have `n * weight` of each taskset up to a few. Each taskset
    passes through epochs of its own. Indices count the tasks of all tasksets, one after the other.
    """

    state = None

    def __init__(
        self, sizes: Sequence[int], weights: Sequence[float], *, seed: int, shuffle: bool, name: str = "train"
    ) -> None:
        """`sizes` [tasksets] numbers of tasks; `weights` [tasksets] positive numbers."""
        self.position = 0
        """Number of tasks taken since the start."""
        self._tasks = sum(sizes)
        self._name = name
        self._starts = [0, *accumulate(sizes)]
        exact = [Fraction(weight) for weight in weights]
        bounds = [int(part / sum(exact) * 2**64) for part in accumulate(exact)]
        self._bounds = np.array(bounds[:-1], dtype=np.uint64)
        self._offset = _seed_of(seed, len(sizes))
        self._orders = [
            EpochOrder(size, seed=int(_seed_of(seed, member)), shuffle=shuffle, incomplete="keep", name=name)
            for member, size in enumerate(sizes)
        ]
        self._counted: tuple[int, IndexArray] = (0, np.zeros(len(sizes), dtype=np.int64))

    def take(self, n: int) -> IndexArray:
        """Indices of the next step of `n` tasks. Raises `DataError` if the tasksets have fewer in all."""
        self.steps_per_epoch(n)
        counts = self._counts_at(self.position).copy()
        taken = np.empty(n, dtype=np.int64)
        for place, member in enumerate(self._members(self.position, self.position + n).tolist()):
            order = self._orders[member]
            order.position = int(counts[member])
            taken[place] = self._starts[member] + order.take(1)[0]
            counts[member] += 1
        self.position += n
        self._counted = (self.position, counts)
        return taken

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` tasks that draw as many tasks as there are. Raises `DataError` if there is none."""
        if n > self._tasks:
            raise DataError(
                f"The mixture {self._name} has {self._tasks} tasks, too few for one step of {n} "
                f"(trainer.tasks_per_step). Write {self._tasks} or fewer tasks per step."
            )
        return self._tasks // n

    def observe(self, outcomes: Sequence[TaskOutcome]) -> None:
        """Nothing: results do not change this order."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Nothing: this order has no state but its position."""

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def _members(self, first: int, end: int) -> IndexArray:
        """[end - first] The taskset of each draw."""
        points = self._offset + np.arange(first, end, dtype=np.uint64) * _GOLDEN
        return np.searchsorted(self._bounds, points, side="right").astype(np.int64)

    def _counts_at(self, position: int) -> IndexArray:
        """[tasksets] Number of draws from each before `position`."""
        known, counts = (
            self._counted if self._counted[0] <= position else (0, np.zeros_like(self._counted[1]))
        )
        while known < position:
            end = min(known + _COUNTED, position)
            counts = counts + np.bincount(self._members(known, end), minlength=len(counts))
            known = end
        self._counted = (known, counts)
        return counts


def run_mixture_order(run: Run, sizes: Sequence[int]) -> TaskOrder:
    """The order of a run's mixture of tasksets of these sizes: by their weights, or epochs over all tasks together."""
    data = run.data
    weights = [section.weight for section in (data.train, *data.mixture) if section.weight is not None]
    if not weights:
        incomplete = data.incomplete_batch
        return EpochOrder(sum(sizes), seed=run.seed, shuffle=data.shuffle, incomplete=incomplete)
    return MixtureOrder(sizes, weights, seed=run.seed, shuffle=data.shuffle)


class MixedTaskSet:
    """Several tasksets in one order, with the methods of a training taskset."""

    def __init__(self, members: Sequence[TaskSet], order: TaskOrder) -> None:
        self._members = tuple(members)
        self._starts = np.cumsum([0, *map(len, members)])
        self._order = order

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __str__(self) -> str:
        """One line per taskset."""
        return "\n".join(map(str, self._members))

    def notes(self) -> Iterator[str]:
        """The lines of all tasksets."""
        return (note for member in self._members for note in member.notes())

    @property
    def fingerprint(self) -> str:
        """The fingerprints of all tasksets."""
        return ", ".join(member.fingerprint for member in self._members)

    @property
    def position(self) -> int:
        """Number of tasks passed, which is all the state to save and to restore."""
        return self._order.position

    @property
    def order_state(self) -> None:
        """None: the position determines the order."""
        return None

    def restore(self, position: int, order_state: Mapping[str, Any] | None) -> None:
        """Continue from a saved position."""
        self._order.position = position

    def observe(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Nothing: results do not change the order."""
        return {}

    def sources(self) -> frozenset[str]:
        """Data sources of the rows of all tasksets."""
        return frozenset().union(*(member.sources() for member in self._members))

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` tasks in one epoch. Raises `DataError` if there is none."""
        return self._order.steps_per_epoch(n)

    def take(self, n: int) -> list[Task]:
        """The next step of `n` tasks. Raises `DataError` if there are too few for a step."""
        places = self._places(self._order.take(n))
        tasks: list[Task | None] = [None] * len(places)
        for member, taskset in enumerate(self._members):
            mine = [(at, index) for at, (owner, index) in enumerate(places) if owner == member]
            for (at, _), task in zip(mine, taskset.tasks_at([index for _, index in mine]), strict=True):
                tasks[at] = task
        ahead = self._places(copy(self._order).take(n))
        for member, taskset in enumerate(self._members):
            taskset.prepare([index for owner, index in ahead if owner == member])
        return [task for task in tasks if task is not None]

    def _places(self, indices: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """The taskset of each index, and its index there."""
        owners = np.searchsorted(self._starts, indices, side="right") - 1
        return list(zip(owners.tolist(), (indices - self._starts[owners]).tolist(), strict=True))


def _seed_of(seed: int, member: int) -> np.uint64:
    state = np.random.SeedSequence(seed, spawn_key=(member, 2)).generate_state(1, np.uint64)
    return np.uint64(state[0])
