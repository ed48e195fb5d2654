"""What samples from a run's model: an engine in this process, or several in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from strop.config.schema import Run
from strop.config.schema.cluster import LocalCluster
from strop.config.schema.rollout import Pool
from strop.config.schema.synchronizer import CollectiveSync
from strop.errors import PlacementError
from strop.inference.native import NativeEngine
from strop.inference.pool import EnginePool, Wanted
from strop.models.fuse import fuse_storage
from strop.models.load import load_model
from strop.protocols import TrainingEngine
from strop.run.apart.place import engines_place
from strop.run.tokenizer import tokenizer_of
from strop.training.device import find_device

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Sampler = NativeEngine | EnginePool


@contextmanager
def open_shared_sampler(
    run: Run, engine: TrainingEngine, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Sampler]:
    """Beside a training engine: on its own weights, laid out for that; of a pool each engine has a copy."""
    if run.rollout.pool is not None:
        with _open_pool(run, run.rollout.pool) as pool:
            yield pool
        return
    engine.lay_out_for_sampling()
    yield NativeEngine(
        engine.computing.config,
        engine.iter_weights(),
        run.rollout.engine,
        tokenizer,
        device=engine.computing.device,
        dtype=engine.compute_dtype,
        generation_config=engine.computing.generation_config,
    )


@contextmanager
def open_own_sampler(run: Run, tokenizer: PreTrainedTokenizerBase) -> Iterator[Sampler]:
    """On a model of its own, as it is: version 0 of the weights."""
    if run.rollout.pool is not None:
        with _open_pool(run, run.rollout.pool) as pool:
            yield pool
        return
    yield _of_model(run, tokenizer, own_device(run))


def own_device(run: Run) -> torch.device:
    """Where an explorer of its own samples: on a GPU behind those of the trainer's ranks, where there is one
    more; an actor sees its own alone.

    Raises PlacementError where the run file wants one for each of the two, and this machine has too few.
    """
    device, section = find_device(run.trainer.engine.device), run.synchronizer
    there = torch.cuda.device_count() if device.type == "cuda" else 0
    ranks = run.trainer.engine.ranks
    nccl = isinstance(section, CollectiveSync) and section.backend == "nccl"
    if nccl and there <= ranks and isinstance(run.cluster, LocalCluster):
        raise PlacementError(
            f"synchronizer.backend: nccl wants {ranks + 1} GPUs, one of them for the explorer, and torch "
            f"sees {there} here; write gloo, or auto."
        )
    if there == 0:
        return device
    device = torch.device("cuda", ranks if there > ranks else 0)
    torch.cuda.set_device(device)
    return device


@contextmanager
def _open_pool(run: Run, section: Pool) -> Iterator[EnginePool]:
    wanted = [Wanted(f"engine-{number}", MakeEngine(run, number)) for number in range(section.engines)]
    with closing(EnginePool(wanted, engines_place(run), section.max_restarts)) as pool:
        yield pool


@dataclass(frozen=True, slots=True)
class MakeEngine:
    """Makes one of a pool's engines, in the process that is to have it."""

    run: Run
    number: int

    def __call__(self) -> NativeEngine:
        section = self.run.rollout.pool
        assert section is not None
        torch.set_num_threads(max(1, torch.get_num_threads() // section.engines))
        device = find_device(self.run.trainer.engine.device)
        if device.type == "cuda":
            device = torch.device("cuda", self._gpu(section.engines))
            torch.cuda.set_device(device)
        return _of_model(self.run, tokenizer_of(self.run), device)

    def _gpu(self, engines: int) -> int:
        """Behind those of the trainer's ranks, where there are so many; an actor sees its own alone."""
        there, ranks = torch.cuda.device_count(), self.run.trainer.engine.ranks
        first = ranks if there >= ranks + engines else 0
        return (first + self.number) % there


def _of_model(run: Run, tokenizer: PreTrainedTokenizerBase, device: torch.device) -> NativeEngine:
    model = load_model(run.model, device=device, trainable=False)
    fuse_storage(model)
    return NativeEngine.from_model(model, run.rollout.engine, tokenizer)
