"""Opens the ranks that `trainer.engine` selects, and builds the training engines of a run on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from strop.config.local_workers import LocalWorkers, local_workers, with_workers
from strop.config.schema import Run
from strop.config.schema.policy_gradient import CriticConfig, ProcessRewardConfig
from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig, LocalEngineConfig
from strop.errors import PlacementError, TrainingError
from strop.protocols import TrainingEngine
from strop.training.device import find_device, find_rank_device_type
from strop.training.engine import CriticEngine, PolicyEngine, ShardedPolicyEngine
from strop.training.parallel.mesh import ParallelDims
from strop.training.ranks.rank import POLICY, PROCESS_REWARD, SingleRank
from strop.training.specs import CriticSpec, PolicySpec
from strop.workers.cleanup import closing
from strop.workers.start import LOCAL, RankPlacement

if TYPE_CHECKING:
    from strop.training.ranks.group import RankGroup


class TrainingBackend:
    """Builds the training engines of one run on its ranks."""

    def __init__(self, run: Run, ranks: SingleRank | RankGroup, description: str) -> None:
        """`description` says how a model is divided over the ranks."""
        self._run, self._ranks, self._description = run, ranks, description

    def policy(self) -> TrainingEngine:
        """The policy's engine, with a reference model and teachers where the algorithm needs them."""
        return self._language_model(POLICY, PolicySpec.of(self._run))

    def process_reward(self, section: ProcessRewardConfig) -> TrainingEngine:
        """The engine of PRIME's process reward model, with its reference."""
        return self._language_model(PROCESS_REWARD, PolicySpec.of_process_reward(self._run, section))

    def critic(self, section: CriticConfig) -> CriticEngine:
        """The critic's engine."""
        return CriticEngine(self._ranks, CriticSpec.of(self._run, section))

    def _language_model(self, name: str, spec: PolicySpec) -> PolicyEngine:
        kind = PolicyEngine if isinstance(spec.engine, LocalEngineConfig) else ShardedPolicyEngine
        return kind(self._ranks, spec, self._description, name=name)


@contextmanager
def open_training_engines(run: Run, placement: RankPlacement = LOCAL) -> Iterator[TrainingBackend]:
    """The backend that `trainer.engine` selects; at the end of the context its processes end.

    Ranks other than this process start at `placement`; the workers of `local` are always on this machine. Raises
    PlacementError for devices that do not exist, MissingExtraError without DeepSpeed where the run needs it, and
    TrainingError for fewer ranks than `trainer.engine.ranks`, or under `trainer.elastic` than its minimum.
    """
    run = on_available_ranks(run, placement.ranks)
    section = run.trainer.engine
    if not isinstance(section, LocalEngineConfig):
        with _open_sharded(run, section, placement) as backend:
            yield backend
        return
    device, workers = find_device(section.device), LocalWorkers(1, 1, "")
    if device.type == "cpu":
        workers = local_workers(run)
    elif section.workers not in ("auto", 1):
        raise PlacementError(
            f"trainer.engine.workers is {section.workers}, and they share the CPU's memory, but the device is "
            f"{device}. Write workers: 1, or device: cpu."
        )
    run = with_workers(run, workers.count)
    if workers.count > 1:
        with _open_workers(run, section, workers) as backend:
            yield backend
    else:
        reason = f", in one process: {workers.reason}" if workers.reason else ""
        yield TrainingBackend(run, SingleRank(device), f"on {device}{reason}")


@contextmanager
def _open_workers(run: Run, section: LocalEngineConfig, workers: LocalWorkers) -> Iterator[TrainingBackend]:
    """Ranks over one copy of the weights; between operations, this process reads and writes them as if it were
    alone."""
    from strop.training.ranks.group import RankGroup  # imported where a run has several ranks

    described = "1 thread" if workers.threads == 1 else f"{workers.threads} threads"
    threads = torch.get_num_threads()
    torch.set_num_threads(workers.threads)  # of this thread; each other worker sets its own
    group = RankGroup(
        workers.count, "cpu", hang_timeout_seconds=section.hang_timeout_seconds, threads=workers.threads
    )
    try:
        with closing(group):
            yield TrainingBackend(
                run, group, f"by {workers.count} processes of {described} over one copy of the weights"
            )
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _open_sharded(
    run: Run, section: Fsdp2EngineConfig | DeepSpeedEngineConfig, placement: RankPlacement
) -> Iterator[TrainingBackend]:
    """Ranks that divide each model."""
    from strop.config.deepspeed import resolved
    from strop.training.parallel.zero import import_deepspeed
    from strop.training.ranks.group import RankGroup

    dims = ParallelDims.of(section)  # raises for sizes that do not fit
    device = find_rank_device_type(section.device, section.ranks, placement)
    if isinstance(section, DeepSpeedEngineConfig):
        if device == "cpu" and run.model.compute_dtype == "float16":
            raise PlacementError(
                "model.compute_dtype is float16, which DeepSpeed computes on GPUs only. Write bfloat16 or float32."
            )
        import_deepspeed(device)
        section = resolved(section)  # other nodes do not have its file
        run = run.model_copy(update={"trainer": run.trainer.model_copy(update={"engine": section})})
        description = describe_zero(section, device)
    else:
        description = describe_mesh(dims, device)
    group = RankGroup.of(section, device, placement)
    with closing(group):
        yield TrainingBackend(run, group, description)


def describe_mesh(dims: ParallelDims, device: str) -> str:
    """Division of a model by FSDP2 over ranks, for the run's description."""
    kinds = {"cpu": ("process", "processes"), "cuda": ("GPU", "GPUs")}[device]
    parts = [f"sharded over {dims.shard_ranks} {kinds[dims.shard_ranks > 1]} (FSDP2)"]
    if dims.replicate > 1:
        parts.append(f"{dims.replicate} replicas")
    if dims.sp > 1:
        parts.append(f"tokens divided over {dims.sp}")
    if dims.tp > 1:
        parts.append(f"matrices divided over {dims.tp}")
    return ", ".join(parts)


def describe_zero(section: DeepSpeedEngineConfig, device: str) -> str:
    """Division of a model by DeepSpeed over ranks, for the run's description."""
    from strop.config.deepspeed import read_config, zero_settings

    settings = zero_settings(section, read_config(section))
    offloads = {"optimizer": settings.offload_optimizer, "parameters": settings.offload_parameters}
    offloaded = " and ".join(name for name, is_on in offloads.items() if is_on)
    kind = "processes" if device == "cpu" else "GPUs"
    tokens = f", tokens divided over {section.sequence_parallel}" if section.sequence_parallel > 1 else ""
    return (
        f"divided over {section.ranks} {kind} (DeepSpeed ZeRO-{settings.stage}"
        f"{f', {offloaded} in CPU memory' if offloaded else ''}{tokens})"
    )


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
