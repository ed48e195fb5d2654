"""The training backend of each `trainer.engine.type`. Ranks are imported where a run has them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from strop.config.schema import Run
from strop.config.schema.policy_gradient import CriticConfig, ProcessRewardConfig
from strop.config.schema.trainer import Fsdp2EngineConfig, LocalEngineConfig
from strop.errors import TrainingError
from strop.protocols import CriticEngine, TrainingEngine
from strop.training.backends.local import open_local
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


def open_training_engines(
    run: Run, placement: RankPlacement = LOCAL
) -> AbstractContextManager[TrainingBackend]:
    """The backend that `trainer.engine` selects; at the end of the context its processes end.

    Ranks other than this process start at `placement`. Raises PlacementError for devices that do not exist, and
    TrainingError for fewer ranks than `trainer.engine.ranks`, or under `trainer.elastic` than its minimum.
    """
    run = on_available_ranks(run, placement.ranks)
    if run.trainer.engine.type == "local":
        return open_local(run, placement)
    from strop.training.backends.ranked import open_deepspeed, open_fsdp2

    return (open_fsdp2 if run.trainer.engine.type == "fsdp2" else open_deepspeed)(run, placement)


def on_available_ranks(run: Run, available: int | None) -> Run:
    """The run with the ranks that there are: all, or under `trainer.elastic` the largest possible number.

    `available` counts the first rank; None stands for as many as the run wants. Raises TrainingError for too few.
    """
    section, elastic = run.trainer.engine, run.trainer.elastic
    if isinstance(section, LocalEngineConfig) or available is None or available >= section.ranks:
        return run
    multiple = section.sequence_parallel
    if isinstance(section, Fsdp2EngineConfig):
        multiple *= section.tensor_parallel * section.replicate
    ranks = available // multiple * multiple
    if elastic is None:
        raise TrainingError(
            f"{available} of the {section.ranks} ranks of trainer.engine.ranks are left. The same command resumes from "
            "the last checkpoint once all are there; with trainer.elastic the run continues with those that are left."
        )
    if ranks < max(elastic.min_ranks, 1):
        sizes = f", of which {ranks} can be used with this layout of trainer.engine" if multiple > 1 else ""
        raise TrainingError(
            f"{available} of {section.ranks} ranks are left{sizes}, and trainer.elastic.min_ranks is "
            f"{elastic.min_ranks}. The same command resumes from the last checkpoint."
        )
    engine = section.model_copy(update={"ranks": ranks})
    return run.model_copy(update={"trainer": run.trainer.model_copy(update={"engine": engine})})
