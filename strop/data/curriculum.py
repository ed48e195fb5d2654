"""Online curriculum: draws of tasks by success rates that the run measures on its own rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from strop.config.schema.data import CurriculumOrderConfig
from strop.data.epoch_order import EpochOrder, IndexArray, TaskOutcome, epoch_permutation, uniform_draws
from strop.reward_comparison import exceeds, reaches

FloatArray = npt.NDArray[np.float64]


class CurriculumOrder:
    """Draws a part of each step by priority among the tasks with a success rate, and explores with the rest.

    Exploration takes the tasks in the order of `EpochOrder`, without its ends of epochs. A draw by priority is without
    replacement, and a function of (seed, position, rates), so that position and `state` resume it exactly.
    """

    def __init__(
        self,
        tasks: int,
        section: CurriculumOrderConfig,
        *,
        seed: int,
        shuffle: bool,
        name: str = "train",
    ) -> None:
        """`shuffle` is the order of exploration: shuffled in each epoch, or that of the rows."""
        self.position = 0
        """Number of tasks taken since the start."""
        self._tasks = tasks
        self._section = section
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = EpochOrder(tasks, seed=seed, shuffle=shuffle, incomplete="drop", name=name)
        self._explored = 0
        """Number of tasks passed by exploration since the start."""
        self._rates: dict[int, float] = {}
        """Success rate of each task that was drawn and scored, in the order of their first results."""
        self._permutation: tuple[int, IndexArray] | None = None
        self._metrics: dict[str, float] = {}

    def take(self, n: int) -> IndexArray:
        """Indices of the next step of `n` different tasks. Raises `DataError` if the taskset is smaller."""
        self.steps_per_epoch(n)
        explored = self._explore(int(np.ceil(self._section.exploration * n)), frozenset())
        drawn = self._draw(n - len(explored), frozenset(explored))
        explored += self._explore(n - len(explored) - len(drawn), frozenset((*explored, *drawn)))
        self._metrics = self._measure(explored, drawn)
        self.position += n
        return np.array([*drawn, *explored], dtype=np.int64)

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` tasks that draw as many tasks as there are. Raises `DataError` if there is none."""
        return self._epochs.steps_per_epoch(n)

    def observe(self, outcomes: Sequence[TaskOutcome]) -> None:
        """Update the success rates of tasks; a group whose rollouts all failed has no result."""
        decay = self._section.decay
        for outcome in outcomes:
            if outcome.rewards:
                new = float(np.mean(reaches(np.array(outcome.rewards), self._section.success_reward)))
                old = self._rates.get(outcome.index)
                self._rates[outcome.index] = new if old is None else decay * old + (1 - decay) * new

    @property
    def state(self) -> Mapping[str, Any]:
        """Number of explored tasks, and the success rates."""
        return {"explored": self._explored, "tasks": [*self._rates], "rates": [*self._rates.values()]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self._explored = state["explored"]
        self._rates = dict(zip(state["tasks"], state["rates"], strict=True))

    def metrics(self) -> dict[str, float]:
        """Statistics of the last draw, and of the success rates known before it."""
        return self._metrics

    def priority(self, rates: FloatArray) -> FloatArray:
        """[n] 1 in the target band, and a linear decrease to 0 at the distance `falloff` from it."""
        low, high = self._section.target
        distance = np.maximum(np.maximum(low - rates, rates - high), 0.0)
        if self._section.falloff == 0:
            return self._in_target(rates).astype(np.float64)
        return np.maximum(0.0, 1 - distance / self._section.falloff)

    def _in_target(self, rates: FloatArray) -> npt.NDArray[np.bool_]:
        low, high = self._section.target
        inside: npt.NDArray[np.bool_] = reaches(rates, low) & ~exceeds(rates, high)
        return inside

    def _draw(self, n: int, taken: frozenset[int]) -> list[int]:
        """At most `n` tasks without replacement, with probabilities proportional to their priorities.

        The largest keys log(u) / priority (Efraimidis and Spirakis, Information Processing Letters 97, 2006).
        """
        tasks = np.fromiter(self._rates, dtype=np.int64, count=len(self._rates))
        weights = self.priority(np.fromiter(self._rates.values(), dtype=np.float64, count=len(tasks)))
        weights[np.isin(tasks, [*taken])] = 0.0
        tasks, weights = tasks[weights > 0], weights[weights > 0]
        keys = np.log(uniform_draws(len(tasks), self._seed, self.position, 1)) / weights
        chosen: list[int] = tasks[np.argsort(-keys, kind="stable")[:n]].tolist()
        return chosen

    def _explore(self, n: int, taken: frozenset[int]) -> list[int]:
        """The next `n` tasks of the epochs that are not `taken`."""
        found: dict[int, None] = {}
        while len(found) < n:
            epoch, offset = divmod(self._explored, self._tasks)
            task = int(self._of_epoch(epoch)[offset])
            self._explored += 1
            if task not in taken:
                found[task] = None
        return [*found]

    def _of_epoch(self, epoch: int) -> IndexArray:
        if not self._shuffle:
            return np.arange(self._tasks)
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = (epoch, epoch_permutation(self._tasks, self._seed, epoch))
        return self._permutation[1]

    def _measure(self, explored: Sequence[int], drawn: Sequence[int]) -> dict[str, float]:
        rates = np.fromiter(self._rates.values(), dtype=np.float64, count=len(self._rates))
        found = {
            "curriculum/explored_fraction": len(explored) / (len(explored) + len(drawn)),
            "curriculum/seen_fraction": len(rates) / self._tasks,
        }
        if len(rates):
            found["curriculum/in_target_fraction"] = float(np.mean(self._in_target(rates)))
            found["curriculum/success_rate"] = float(rates.mean())
        if drawn:
            found["curriculum/drawn_rate"] = float(np.mean([self._rates[task] for task in drawn]))
        return found
