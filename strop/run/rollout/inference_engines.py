"""Opening of the inference engine or pool of engines that a run samples from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from strop.config.schema import Run
from strop.config.schema.cluster import LocalClusterConfig
from strop.config.schema.rollout import EnginePoolConfig
from strop.config.schema.synchronizer import CollectiveSyncConfig
from strop.errors import PlacementError
from strop.inference.pool import EnginePool, EngineSpec
from strop.inference.registry import attach_engine, load_engine, running_engine
from strop.protocols import InferenceEngine, TrainingEngine
from strop.run.distributed.placement import engine_placement
from strop.run.tokenizer import load_run_tokenizer
from strop.training.device import find_device

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@contextmanager
def open_colocated_engine(
    run: Run, engine: TrainingEngine, tokenizer: PreTrainedTokenizerBase
) -> Iterator[InferenceEngine]:
    """Open an engine in the trainer's process, which shares the trainer's weights if possible.

    The engines of a pool load copies of the model.
    """
    if run.rollout.pool is not None:
        sampler: InferenceEngine = _pool(run, run.rollout.pool)
    else:
        sampler = attach_engine(run.rollout.engine, engine.shared_weights(), tokenizer)
    with running_engine(sampler):
        yield sampler


@contextmanager
def open_separate_engine(run: Run, tokenizer: PreTrainedTokenizerBase) -> Iterator[InferenceEngine]:
    """Open an engine that loads the initial model itself: version 0 of the weights."""
    if run.rollout.pool is not None:
        sampler: InferenceEngine = _pool(run, run.rollout.pool)
    else:
        sampler = load_engine(run.rollout.engine, run.model, tokenizer, explorer_device(run))
    with running_engine(sampler):
        yield sampler


def explorer_device(run: Run) -> torch.device:
    """Device of an explorer in its own process: the first GPU after those of the trainer's ranks, if there is one.

    A Ray actor sees only its own GPU. Raises `PlacementError` if NCCL needs one GPU more than there are.
    """
    device, section = find_device(run.trainer.engine.device), run.synchronizer
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    ranks = run.trainer.engine.ranks
    nccl = isinstance(section, CollectiveSyncConfig) and section.backend == "nccl"
    if nccl and gpus <= ranks and isinstance(run.cluster, LocalClusterConfig):
        raise PlacementError(
            f"synchronizer.backend: nccl needs {ranks + 1} GPUs, one of them for the explorer, and torch "
            f"finds {gpus}; set it to gloo or auto."
        )
    if gpus == 0:
        return device
    device = torch.device("cuda", ranks if gpus > ranks else 0)
    torch.cuda.set_device(device)
    return device


@dataclass(frozen=True, slots=True)
class PoolEngineFactory:
    """Builds one of a pool's engines, in the engine's process."""

    run: Run
    number: int
    """Index of the engine in the pool."""

    def __call__(self) -> InferenceEngine:
        """Load the tokenizer and the model."""
        section = self.run.rollout.pool
        assert section is not None
        torch.set_num_threads(max(1, torch.get_num_threads() // section.engines))
        device = find_device(self.run.trainer.engine.device)
        if device.type == "cuda":
            device = torch.device("cuda", self._gpu(section.engines))
            torch.cuda.set_device(device)
        return load_engine(self.run.rollout.engine, self.run.model, load_run_tokenizer(self.run), device)

    def _gpu(self, engines: int) -> int:
        """GPUs after those of the trainer's ranks if there are enough, else all; a Ray actor sees only its own."""
        gpus, ranks = torch.cuda.device_count(), self.run.trainer.engine.ranks
        first = ranks if gpus >= ranks + engines else 0
        return (first + self.number) % gpus


def _pool(run: Run, section: EnginePoolConfig) -> EnginePool:
    specs = [
        EngineSpec(f"engine-{number}", PoolEngineFactory(run, number)) for number in range(section.engines)
    ]
    return EnginePool(specs, engine_placement(run), section.max_restarts)
