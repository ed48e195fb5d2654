"""Registry of training backends, by `trainer.engine.type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from strop.config.schema import Run
from strop.config.schema.policy_gradient import CriticConfig, ProcessRewardConfig
from strop.protocols import CriticEngine, TrainingEngine
from strop.training.backends.deepspeed import open_deepspeed
from strop.training.backends.fsdp2 import open_fsdp2
from strop.training.backends.local import open_local
from strop.training.ranks.available import on_available_ranks
from strop.workers.start import LOCAL, RankPlacement


class TrainingBackend(Protocol):
    """Builds the training engines of one run."""

    def policy(self) -> TrainingEngine:
        """The policy's engine, with a reference model and teachers where the algorithm needs them."""
        ...

    def critic(self, section: CriticConfig) -> CriticEngine:
        """The critic's engine."""
        ...

    def process_reward(self, section: ProcessRewardConfig) -> TrainingEngine:
        """The engine of PRIME's process reward model, with its reference. Raises PlacementError for a backend without
        one."""
        ...


OpenBackend = Callable[[Run, RankPlacement], AbstractContextManager[TrainingBackend]]

TRAINING_BACKENDS: Mapping[str, OpenBackend] = {
    "local": open_local,
    "fsdp2": open_fsdp2,
    "deepspeed": open_deepspeed,
}
"""Opener of each backend, by `trainer.engine.type`."""


def open_training_engines(
    run: Run, placement: RankPlacement = LOCAL
) -> AbstractContextManager[TrainingBackend]:
    """The backend that `trainer.engine` selects; at the end of the context its processes end.

    Ranks other than this process start at `placement`. Raises PlacementError for devices that do not exist, and
    TrainingError for fewer ranks than `trainer.engine.ranks`, or under `trainer.elastic` than its minimum.
    """
    run = on_available_ranks(run, placement.ranks)
    return TRAINING_BACKENDS[run.trainer.engine.type](run, placement)
