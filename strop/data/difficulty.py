"""Task selection by estimated difficulty: Beta distributions of pass rates, and draws of the tasks near a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from strop.config.schema.data import DifficultyOrderConfig
from strop.data.epoch_order import EpochOrder, IndexArray, TaskOutcome, epoch_permutation, uniform_draws
from strop.reward_comparison import reaches

FloatArray = npt.NDArray[np.float64]
_CAPABILITY_DECAY = 0.9
"""Weight of the earlier steps in the model's place between the two reference models."""
_WRONG = 0.25
"""Mean error of the interpolated pass rates from which on their weight is halved."""
_EQUAL = 1e-3
"""Difference of the references' mean pass rates below which a step does not say where between them the model is."""


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
