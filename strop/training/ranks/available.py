"""Number of ranks of a run that continues after the loss of a node."""

from __future__ import annotations

from strop.config.schema import Run
from strop.config.schema.trainer import Fsdp2EngineConfig, LocalEngineConfig
from strop.errors import TrainingError


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
