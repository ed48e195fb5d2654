"""A run's training engines, of the kind that its run file names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Protocol, assert_never

from strop.config.schema import Run
from strop.config.schema.critic import Critic
from strop.config.schema.trainer import Fsdp2Engine
from strop.config.schema.trainer import SingleEngine as Single
from strop.protocols import CriticEngine, TrainingEngine
from strop.training.device import find_devices
from strop.training.ranks.engines import RankedEngine, RankedValueEngine
from strop.training.ranks.group import RankGroup
from strop.training.single import SingleEngine
from strop.training.value import ValueEngine
from strop.workers.start import HERE, OnRay, Place


class Engines(Protocol):
    """Makes the engines of one run."""

    def policy(self) -> TrainingEngine:
        """Of the model that is trained, with its reference where the algorithm wants one."""
        ...

    def critic(self, section: Critic) -> CriticEngine:
        """Of the value model beside it."""
        ...


@contextmanager
def open_engines(run: Run, place: Place = HERE) -> Iterator[Engines]:
    """What makes the engines of `trainer.engine`; at the end of the context they are gone. Ranks that are
    not this process are in that kind of place.

    Raises PlacementError for devices that are not there.
    """
    match run.trainer.engine:
        case Single():
            yield _InOneProcess(run)
        case Fsdp2Engine(ranks=ranks, device=device):
            here = 1 if isinstance(place, OnRay) else ranks
            with closing(RankGroup(ranks, find_devices(device, here), place)) as group:
                yield _OnRanks(run, group)
        case engine:
            assert_never(engine)


class _InOneProcess:
    def __init__(self, run: Run) -> None:
        self._run = run

    def policy(self) -> TrainingEngine:
        return SingleEngine(self._run)

    def critic(self, section: Critic) -> CriticEngine:
        return ValueEngine(self._run, section)


class _OnRanks:
    def __init__(self, run: Run, group: RankGroup) -> None:
        self._run = run
        self._group = group

    def policy(self) -> TrainingEngine:
        return RankedEngine(self._group, self._run)

    def critic(self, section: Critic) -> CriticEngine:
        return RankedValueEngine(self._group, self._run, section)
