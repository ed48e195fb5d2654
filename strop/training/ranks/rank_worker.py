"""One rank: its process group and its models, and the loop that runs the controller's messages."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.distributed import DistBackendError, DistNetworkError, DistStoreError

from strop.config.schema.trainer import (
    DeepSpeedEngineConfig,
    Fsdp2EngineConfig,
    LocalEngineConfig,
    TrainingEngineConfig,
)
from strop.training.parallel.fsdp2 import Fsdp2Parallelizer
from strop.training.parallel.mesh import ParallelDims, RankMeshes
from strop.training.parallel.parallelize import Parallelizer
from strop.training.parallel.shared_memory import SharedMemoryParallelizer
from strop.training.parallel.zero import ZeroParallelizer
from strop.training.ranks.messages import (
    CRITIC,
    POLICY,
    RankFailure,
    RankMessage,
    RankResult,
    RankSpec,
    SaveCheckpoint,
)
from strop.training.ranks.rendezvous import init_process_group, set_collective_timeout
from strop.training.ranks.sharded_save import shard_writers, write_shard
from strop.training.specs import CriticSpec, PolicySpec
from strop.training.trained_models import CriticModel, PolicyModel
from strop.workers.worker import Channel, RemoteFailure

_COLLECTIVE_ERRORS = (RuntimeError, DistBackendError, DistNetworkError, DistStoreError)
"""Exactly these types are raised by torch in a collective operation that another rank has left."""


class RankWorker:
    """A rank with its models, by name."""

    def __init__(self, spec: RankSpec, listening: socket.socket | None = None) -> None:
        """Joins the other ranks; returns once all of them are there. See `init_process_group`."""
        self.rank, self._ranks = spec.rank, spec.ranks
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        self.device, self.store = init_process_group(spec, listening)
        self.node = platform.node()
        """Name of the rank's node."""
        self._collective_timeout_seconds = spec.collective_timeout_seconds
        set_collective_timeout(spec.collective_timeout_seconds)
        self._meshes: dict[ParallelDims, RankMeshes] = {}
        self._models: dict[str, Any] = {}
        self._dims: dict[str, ParallelDims] = {}

    def build_policy(self, spec: PolicySpec, name: str = POLICY) -> None:
        """Build this rank's shard of a policy."""
        self._models[name] = PolicyModel(spec, self._parallelizer(name, spec.engine))
        set_collective_timeout(self._collective_timeout_seconds)
        # Dropout differs between ranks, except where these have copies of the same hidden states.
        torch.manual_seed(spec.seed + self.rank // self._dims[name].tp)

    def build_critic(self, spec: CriticSpec) -> None:
        """Build this rank's shard of the critic."""
        self._models[CRITIC] = CriticModel(spec, self._parallelizer(CRITIC, spec.engine))
        set_collective_timeout(self._collective_timeout_seconds)

    def model(self, name: str) -> Any:
        """The model with a name."""
        return self._models[name]

    def remove(self, name: str) -> None:
        """Free a model."""
        del self._models[name]

    def begin_save(self, save: SaveCheckpoint) -> Callable[[], None]:
        """Take a snapshot; the returned function writes it, in any thread, and reports to the other ranks."""
        snapshot = self.model(save.model).snapshot()
        files = shard_writers(save, snapshot, self._dims[save.model].replica_ranks)
        return partial(write_shard, save, files, self.store)

    def _parallelizer(self, model: str, engine: TrainingEngineConfig) -> Parallelizer:
        """The parallelizer of a model; models of the same dimensions share the meshes."""
        dims = self._dims[model] = ParallelDims.of(engine)
        if isinstance(engine, LocalEngineConfig):
            return SharedMemoryParallelizer(self.device, self.rank, self._ranks)
        if dims not in self._meshes:
            self._meshes[dims] = dims.build_meshes(self.device.type)
        meshes = self._meshes[dims]
        if isinstance(engine, DeepSpeedEngineConfig):
            return ZeroParallelizer.of(engine, self.device, meshes)
        assert isinstance(engine, Fsdp2EngineConfig)
        return Fsdp2Parallelizer(self.device, meshes, engine)


def run_rank_worker(channel: Channel) -> None:
    """Process of a rank other than the first: run messages until the controller ends or this rank fails."""
    spec: RankSpec = channel.receive()
    try:
        worker = RankWorker(spec)
    except Exception as error:  # noqa: BLE001  (the controller raises it)
        channel.send(_failure(error))
        return
    reply: RankResult | RankFailure = RankResult(worker.node)
    while isinstance(reply, RankResult):
        channel.send(reply)
        reply = _run(channel.receive(), worker)
    channel.send(reply)


def _run(message: RankMessage, worker: RankWorker) -> RankResult | RankFailure:
    try:
        return RankResult(message.run(worker))
    except Exception as error:  # noqa: BLE001  (the controller raises it)
        return _failure(error)


def _failure(error: Exception) -> RankFailure:
    return RankFailure(RemoteFailure.from_exception(error), type(error) in _COLLECTIVE_ERRORS)
