"""A run's training engines, of the kind that its run file names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strop.config.schema import Run
from strop.config.schema.critic import Critic
from strop.protocols import CriticEngine, TrainingEngine
from strop.training.single import SingleEngine
from strop.training.value import ValueEngine


class Engines:
    """Makes them, in this process."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def policy(self) -> TrainingEngine:
        """Of the model that is trained, with its reference where the algorithm wants one."""
        return SingleEngine(self._run)

    def critic(self, section: Critic) -> CriticEngine:
        """Of the value model beside it."""
        return ValueEngine(self._run, section)


@contextmanager
def open_engines(run: Run) -> Iterator[Engines]:
    """What makes the engines of `trainer.engine`; at the end of the context they are gone.

    Raises PlacementError for devices that are not there.
    """
    yield Engines(run)
