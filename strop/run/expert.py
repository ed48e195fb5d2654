"""The expert's answers that mix learns beside rollouts."""

from __future__ import annotations

from strop.config.schema.algorithm import Mix
from strop.config.schema.trainer import Trainer
from strop.data.answers import AnswerSet
from strop.types import Experience


class ExpertRows:
    """Gives each update as many of the expert's answers as `expert_share` says, epoch after epoch."""

    def __init__(self, answers: AnswerSet, algorithm: Mix, trainer: Trainer) -> None:
        rollouts = (trainer.tasks_per_update or trainer.tasks_per_step) * algorithm.rollouts_per_task
        self._answers = answers
        self.per_update = expert_rows(rollouts, algorithm.expert_share)

    @property
    def position(self) -> int:
        """Where the order stands: all there is to save."""
        return self._answers.position

    @position.setter
    def position(self, position: int) -> None:
        self._answers.position = position

    def take(self) -> list[Experience]:
        """The next update's."""
        groups = self._answers.take(self.per_update)
        return [experience for group in groups for experience in group.experiences]


def expert_rows(rollouts: int, share: float) -> int:
    """So many expert answers are this share of an update that has so many rollouts; one at least."""
    return max(1, round(rollouts * share / (1 - share)))
