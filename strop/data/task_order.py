"""Orders of the training tasks: `data.order` and `data.shuffle` as a `TaskOrder`.

Tasks are taken in epochs; near a target of estimated pass rates (`DifficultyOrder`); or by the rates that the run
measures itself (`CurriculumOrder`). A seed determines an order, and one number resumes it, with the state of orders
that measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from strop.config.schema.data import (
    ColumnOrderConfig,
    CurriculumOrderConfig,
    DifficultyOrderConfig,
    TaskOrderConfig,
)
from strop.data.encoding.truncation import RowNumbers
from strop.data.sources.columns import value_at
from strop.data.sources.rows import DatasetRows
from strop.errors import DataError
from strop.reward_comparison import exceeds, reaches

IndexArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_CAPABILITY_DECAY = 0.9
"""Weight of the earlier steps in the model's place between the two reference models."""
_WRONG = 0.25
"""Mean error of the interpolated pass rates from which on their weight is halved."""
_EQUAL = 1e-3
"""Difference of the references' mean pass rates below which a step does not say where between them the model is."""


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


class DifficultyOrder:
    """Draws the tasks whose pass rates are nearest to a target: Bayesian online task selection (arXiv 2510.26374).

    A task's pass rate has a Beta distribution, at first Beta(1, 1). A step with the pass rates `p` of its tasks and
    interpolated ones of the others changes the counts of all: `alpha = (1 - forgetting) * alpha + forgetting + counts *
    p`, where the interpolated ones count with the weight `interpolation_weight`, and `beta` likewise with `1 - p`.
    Draws are without replacement within a step, and a function of (seed, position, state).
    """

    def __init__(
        self,
        references: FloatArray,
        section: DifficultyOrderConfig,
        *,
        seed: int,
        shuffle: bool,
        name: str = "train",
    ) -> None:
        """`references` [tasks, 2] pass rates of a weaker and a stronger model; `shuffle` is the order of equal tasks:
        shuffled in each step, or that of the rows."""
        self.position = 0
        """Number of tasks taken since the start."""
        self._references = references
        self._section = section
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = EpochOrder(len(references), seed=seed, shuffle=shuffle, incomplete="drop", name=name)
        self._alphas = np.ones(len(references))
        self._betas = np.ones(len(references))
        self._capability: float | None = None
        """Place of the model between the weaker (0) and the stronger (1) reference; None before the first results."""
        self._weight = section.interpolation_weight
        self._metrics: dict[str, float] = {}

    def take(self, n: int) -> IndexArray:
        """Indices of the next step of `n` different tasks, nearest first. Raises `DataError` if there are fewer."""
        self.steps_per_epoch(n)
        keys = -np.abs(self._section.target - self._predictions())
        if self._section.temperature > 0:
            uniform = uniform_draws(len(keys), self._seed, self.position, 4)
            keys = keys / self._section.temperature - np.log(
                -np.log(uniform)
            )  # Gumbel noise: the n largest are drawn
        order = (
            epoch_permutation(len(keys), self._seed, self.position) if self._shuffle else np.arange(len(keys))
        )
        taken = order[np.argsort(-keys[order], kind="stable")[:n]]
        rates = self.rates
        self._metrics = {
            "difficulty/rate": float(rates.mean()),
            "difficulty/drawn_rate": float(rates[taken].mean()),
        }
        self.position += n
        return taken

    def steps_per_epoch(self, n: int) -> int:
        """Number of steps of `n` tasks that draw as many tasks as there are. Raises `DataError` if there is none."""
        return self._epochs.steps_per_epoch(n)

    def observe(self, outcomes: Sequence[TaskOutcome]) -> None:
        """Update the estimates of all tasks; a group whose rollouts all failed has no result."""
        scored = [outcome for outcome in outcomes if outcome.rewards]
        if not scored:
            return
        tasks = np.array([outcome.index for outcome in scored], dtype=np.int64)
        observed = np.array([self._pass_rate(outcome.rewards) for outcome in scored])
        capability = self._update_capability(tasks, observed)
        weaker, stronger = self._references.T
        rates = np.clip(weaker + capability * (stronger - weaker), 0.0, 1.0)
        error = float(np.mean(np.abs(rates[tasks] - observed)))
        if self._section.halve_weight and error >= _WRONG:
            self._weight *= 0.5
        weights = np.full(len(rates), self._weight)
        rates[tasks], weights[tasks] = observed, 1.0
        counts, kept = self._section.counts_per_group * weights, 1 - self._section.forgetting
        self._alphas = kept * self._alphas + self._section.forgetting + counts * rates
        self._betas = kept * self._betas + self._section.forgetting + counts * (1 - rates)
        self._metrics = {
            **self._metrics,
            "difficulty/observed_rate": float(observed.mean()),
            "difficulty/interpolation_error": error,
            "difficulty/interpolation_weight": self._weight,
            "difficulty/capability": capability,
        }

    @property
    def rates(self) -> FloatArray:
        """[tasks] Mean of each task's Beta distribution."""
        return self._alphas / (self._alphas + self._betas)

    @property
    def state(self) -> Mapping[str, Any]:
        """The parameters of all Beta distributions, the model's place between the references, and the weight."""
        return {
            "alphas": self._alphas.tolist(),
            "betas": self._betas.tolist(),
            "capability": self._capability,
            "weight": self._weight,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self._alphas, self._betas = np.array(state["alphas"]), np.array(state["betas"])
        self._capability, self._weight = state["capability"], state["weight"]

    def metrics(self) -> dict[str, float]:
        """Statistics of the last draw, and of the results since."""
        return self._metrics

    def _predictions(self) -> FloatArray:
        """[tasks] Samples of the Beta distributions, or their means. NumPy guarantees that the draws of `RandomState`
        are the same in every version."""
        if not self._section.thompson_sampling:
            return self.rates
        bits = np.random.MT19937(np.random.SeedSequence(self._seed, spawn_key=(self.position, 3)))
        return np.random.RandomState(bits).beta(self._alphas, self._betas)

    def _pass_rate(self, rewards: Sequence[float]) -> float:
        values = np.array(rewards)
        if self._section.success_reward is None:
            return float(np.clip(values.mean(), 0.0, 1.0))
        return float(np.mean(reaches(values, self._section.success_reward)))

    def _update_capability(self, tasks: IndexArray, observed: FloatArray) -> float:
        """The model's place between the two references on the step's tasks, averaged over steps."""
        weaker, stronger = self._references[tasks].mean(axis=0).tolist()
        if abs(stronger - weaker) < _EQUAL:
            return 0.5 if self._capability is None else self._capability
        new = (float(observed.mean()) - weaker) / (stronger - weaker)
        if self._capability is not None:
            new = _CAPABILITY_DECAY * self._capability + (1 - _CAPABILITY_DECAY) * new
        self._capability = new
        return new


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


def make_task_order(
    section: TaskOrderConfig | None,
    rows: DatasetRows,
    numbers: RowNumbers,
    *,
    seed: int,
    shuffle: bool,
    incomplete: Literal["drop", "keep"],
    name: str,
) -> TaskOrder:
    """The order of the tasks of the rows `numbers`. Raises `DataError` for a column that cannot be sorted."""
    size = len(numbers)
    if isinstance(section, CurriculumOrderConfig):
        return CurriculumOrder(size, section, seed=seed, shuffle=shuffle, name=name)
    if isinstance(section, DifficultyOrderConfig):
        references = reference_rates(section, rows, numbers)
        return DifficultyOrder(references, section, seed=seed, shuffle=shuffle, name=name)
    ranks = None if section is None else column_ranks(section, rows, numbers)
    return EpochOrder(size, seed=seed, shuffle=shuffle, incomplete=incomplete, name=name, ranks=ranks)


def column_ranks(section: ColumnOrderConfig, rows: DatasetRows, numbers: RowNumbers) -> IndexArray:
    """[tasks] Rank of each task by its column; equal values have equal ranks. Raises `DataError`."""
    places = {value: place for place, value in enumerate(section.values)}
    wanted = np.zeros(len(rows), dtype=bool)
    wanted[numbers] = True
    values: list[float] | list[str] = []
    for number, row in enumerate(rows.scan([section.column])):
        if wanted[number]:
            where = rows.where(number)
            value = value_at(row, section.column, where)
            if section.values:
                if not isinstance(value, str) or value not in places:
                    raise DataError(
                        f"{where}: the column {section.column!r} is {value!r}, which data.order.values does not name. "
                        f"It names {', '.join(section.values)}; add the value in its place."
                    )
                value = places[value]
            _require_comparable(value, values, where, section.column)
            values.append(value)
    ranks = np.unique(np.array(values), return_inverse=True)[1].astype(np.int64)
    return -ranks if section.descending else ranks


def reference_rates(section: DifficultyOrderConfig, rows: DatasetRows, numbers: RowNumbers) -> FloatArray:
    """[tasks, 2] Pass rates of the two reference models. Raises `DataError` for a value that is none."""
    wanted = np.zeros(len(rows), dtype=bool)
    wanted[numbers] = True
    rates: list[list[float]] = []
    for number, row in enumerate(rows.scan([*section.columns])):
        if wanted[number]:
            where = rows.where(number)
            rates.append(
                [_pass_rate(value_at(row, column, where), where, column) for column in section.columns]
            )
    return np.array(rates, dtype=np.float64).reshape(-1, 2)


def _pass_rate(value: object, where: str, column: str) -> float:
    if isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    raise DataError(
        f"{where}: the column {column!r} is {value!r}, and data.order difficulty needs a pass rate from 0 to 1. Write "
        "another column, or fill in the value."
    )


def _require_comparable(value: object, before: Sequence[object], where: str, column: str) -> None:
    kind = "text" if isinstance(value, str) else "number"
    is_number = isinstance(value, int | float) and value == value
    if not (isinstance(value, str) or is_number):
        raise DataError(
            f"{where}: the column {column!r} is {value!r}, and data.order sorts by a number or text. Write another "
            "column, or fill in the value."
        )
    if before and isinstance(before[0], str) != isinstance(value, str):
        raise DataError(
            f"{where}: the column {column!r} is {value!r}, a {kind}, and other rows have a value of another type. "
            "data.order sorts by numbers or by text; make the column one of them."
        )
