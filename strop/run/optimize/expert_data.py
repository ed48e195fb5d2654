"""Demonstrations that are trained on together with the rollouts of each update: mix's expert, and GKD's dataset."""

from __future__ import annotations

from dataclasses import replace

from strop.config.schema import Run
from strop.config.schema.algorithm import DistillationOnlyConfig
from strop.config.schema.group_baselines import MixConfig
from strop.data.offline_dataset import OfflineDataset
from strop.types import Experience


class ExpertData:
    """Gives each update its demonstrations, a fraction of the update, epoch after epoch."""

    def __init__(self, demonstrations: OfflineDataset, run: Run) -> None:
        algorithm, trainer = run.algorithm, run.trainer
        if isinstance(algorithm, MixConfig):
            fraction, self._temperature = algorithm.expert_fraction, 1.0
        else:
            assert isinstance(algorithm, DistillationOnlyConfig)
            fraction, self._temperature = algorithm.demonstration_fraction, run.rollout.sampling.temperature
        rollouts = (trainer.tasks_per_update or trainer.tasks_per_step) * algorithm.rollouts_per_task
        self._demonstrations = demonstrations
        self.per_update = expert_answers_per_update(rollouts, fraction)

    @property
    def position(self) -> int:
        """Position in the dataset's order; the only state."""
        return self._demonstrations.position

    @position.setter
    def position(self, position: int) -> None:
        self._demonstrations.position = position

    def take(self) -> list[Experience]:
        """The demonstrations of the next update. A teacher judges them at the temperature of rollouts."""
        groups = self._demonstrations.take(self.per_update)
        return [
            replace(experience, temperature=self._temperature)
            for group in groups
            for experience in group.experiences
        ]


def expert_answers_per_update(rollouts: int, fraction: float) -> int:
    """Number of demonstrations that are `fraction` of an update with `rollouts` rollouts; at least one."""
    return max(1, round(rollouts * fraction / (1 - fraction)))
