"""Expert demonstrations that the mix algorithm adds to the rollouts of each update."""

from __future__ import annotations

from strop.config.schema.group_baselines import MixConfig
from strop.config.schema.trainer import TrainerConfig
from strop.data.offline_dataset import OfflineDataset
from strop.types import Experience


class ExpertData:
    """Gives each update its expert demonstrations, `expert_fraction` of the update, epoch after epoch."""

    def __init__(self, demonstrations: OfflineDataset, algorithm: MixConfig, trainer: TrainerConfig) -> None:
        rollouts = (trainer.tasks_per_update or trainer.tasks_per_step) * algorithm.rollouts_per_task
        self._demonstrations = demonstrations
        self.per_update = expert_answers_per_update(rollouts, algorithm.expert_fraction)

    @property
    def position(self) -> int:
        """Position in the dataset's order; the only state."""
        return self._demonstrations.position

    @position.setter
    def position(self, position: int) -> None:
        self._demonstrations.position = position

    def take(self) -> list[Experience]:
        """The demonstrations of the next update."""
        groups = self._demonstrations.take(self.per_update)
        return [experience for group in groups for experience in group.experiences]


def expert_answers_per_update(rollouts: int, fraction: float) -> int:
    """Number of demonstrations that are `fraction` of an update with `rollouts` rollouts; at least one."""
    return max(1, round(rollouts * fraction / (1 - fraction)))
