"""One rank of a trainer: its models, and the operations that their engines call on every rank at the same time (SPMD).

The first rank is in the controller's own process, and in a run of one process it is the only one.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from strop.algorithms.losses.value_losses import ValueLoss
from strop.algorithms.registry import AnyLossSpec
from strop.config.schema.record import SaveConcurrency
from strop.config.schema.trainer import (
    DeepSpeedEngineConfig,
    Fsdp2EngineConfig,
    LocalEngineConfig,
    TrainingEngineConfig,
)
from strop.models.formats.huggingface import join_export
from strop.protocols import EngineSnapshot, TokenQuantity
from strop.training.checkpoints.file_writer import rng_file_name
from strop.training.checkpoints.tensors import get_rng_state, read_tensors, set_rng_state
from strop.training.parallel.mesh import ParallelDims, RankMeshes
from strop.training.parallel.parallelize import Parallelizer, SingleDevice
from strop.training.ranks.share import IdleSafeLoss, RankShare
from strop.training.specs import CriticSpec, PolicySpec
from strop.training.trained_models import CriticModel, PolicyModel
from strop.types import FloatArray, GlobalCounts

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from strop.training.ranks.sharded_save import ShardedSave

POLICY, CRITIC, PROCESS_REWARD = "policy", "critic", "process_reward"
"""Names of the models on a rank."""
P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")


class Rank:
    """A rank with its models, by name. Arguments and results of its methods are data that a process can send."""

    def __init__(
        self,
        device: torch.device,
        rank: int = 0,
        ranks: int = 1,
        *,
        store: Store | None = None,
        collective_timeout_seconds: float | None = None,
    ) -> None:
        """`store` is the ranks' key-value store, and `collective_timeout_seconds` the longest wait for other ranks in
        a collective operation; both are None for a process without a group."""
        self.device, self.rank, self.ranks, self.store = device, rank, ranks, store
        self.node = platform.node()
        """Name of the rank's node."""
        self._collective_timeout_seconds = collective_timeout_seconds
        self._set_collective_timeout()
        self._meshes: dict[ParallelDims, RankMeshes] = {}
        self._models: dict[str, Any] = {}
        self._dims: dict[str, ParallelDims] = {}

    def model(self, name: str) -> Any:
        """The model with a name, or this rank's shard of it."""
        return self._models[name]

    def remove(self, name: str) -> None:
        """Free a model."""
        del self._models[name]

    def build_policy(self, name: str, spec: PolicySpec) -> None:
        """Build a language model or classifier. Raises ModelError for one that cannot be trained."""
        self._models[name] = PolicyModel(spec, self._parallelizer(name, spec.engine))
        self._set_collective_timeout()
        if self.store is not None:
            # Dropout differs between ranks, except where these have copies of the same hidden states.
            torch.manual_seed(spec.seed + self.rank // self._dims[name].tp)

    def build_critic(self, spec: CriticSpec) -> None:
        """Build the critic. Raises ModelError for one that cannot be trained."""
        self._models[CRITIC] = CriticModel(spec, self._parallelizer(CRITIC, spec.engine))
        self._set_collective_timeout()

    def forward_backward(
        self,
        share: RankShare,
        name: str,
        loss: AnyLossSpec,
        counts: GlobalCounts,
        expert_load: npt.NDArray[np.float64] | None = None,
    ) -> dict[str, float]:
        """Add the gradient of the rank's share to a policy's; returns the share's metrics. `expert_load` [layers, E] is
        the fraction of the update's tokens that each router gives to each expert."""
        policy: PolicyModel = self._models[name]
        metrics = policy.forward_backward(
            share.micro_batches(policy.device, policy.images),
            IdleSafeLoss(loss.build()),
            counts,
            entropy=loss.needs_entropy,
            divergence=loss.needs_divergence,
            teacher_divergence=loss.teacher_divergence,
            expert_load=None if expert_load is None else torch.from_numpy(expert_load),
        )
        return dict(metrics)

    def critic_forward_backward(
        self, share: RankShare, loss: ValueLoss, counts: GlobalCounts
    ) -> dict[str, float]:
        """Add the gradient of the rank's share to the critic's; returns the share's metrics."""
        critic: CriticModel = self._models[CRITIC]
        micro_batches = share.micro_batches(critic.device, critic.images)
        return dict(critic.forward_backward(micro_batches, IdleSafeLoss(loss), counts))

    def expert_counts(self, share: RankShare, name: str) -> npt.NDArray[np.float64]:
        """[layers, E] Number of tokens of the rank's share that each router gives to each expert."""
        policy: PolicyModel = self._models[name]
        micro_batches = share.micro_batches(policy.device, policy.images)
        counts: npt.NDArray[np.float64] = policy.expert_counts(micro_batches).cpu().numpy()
        return counts

    def evaluate_loss(
        self, share: RankShare, name: str, loss: AnyLossSpec, counts: GlobalCounts
    ) -> list[dict[str, float]]:
        """Metrics of each micro-batch of the rank's share, without a gradient."""
        policy: PolicyModel = self._models[name]
        micro_batches = share.micro_batches(policy.device, policy.images)
        return policy.evaluate_loss(micro_batches, loss.build(), counts)

    def token_values(self, share: RankShare, name: str, quantity: TokenQuantity) -> dict[int, FloatArray]:
        """[L] of each experience of the rank's share, by its number: a quantity of a policy at each target."""
        policy: PolicyModel = self._models[name]
        micro_batches = list(share.micro_batches(policy.device, policy.images))
        return share.unpack(micro_batches, policy.token_values(micro_batches, quantity))

    def critic_values(self, share: RankShare) -> dict[int, FloatArray]:
        """[L] of each experience of the rank's share, by its number: value of the state before each target."""
        critic: CriticModel = self._models[CRITIC]
        micro_batches = list(share.micro_batches(critic.device, critic.images))
        return share.unpack(micro_batches, critic.values(micro_batches))

    def join_iter_weights(self, name: str) -> None:
        """Take part in the gathering of the full weights on the first rank."""
        for _ in self._models[name].iter_weights():
            pass

    def join_export(self, name: str) -> None:
        """Take part in the export of a model by the first rank."""
        join_export(self._models[name].master)

    def join_write_adapter(self, name: str) -> None:
        """Take part in the writing of an adapter by the first rank."""
        self._models[name].join_write_adapter()

    def load(self, name: str, folder: Path) -> None:
        """Restore a model's state from a checkpoint of any number of ranks.

        Dropout continues exactly where the number is the same. Raises CheckpointError for another model's state.
        """
        model = self._models[name]
        before = get_rng_state(model.device)
        model.load(folder)
        if self.rank and name != CRITIC:
            # The first rank's random state has been read; this rank has its own, if it was saved.
            states = folder / rng_file_name(self.rank)
            set_rng_state(model.device, read_tensors(states) if states.exists() else before)

    def begin_save(self, save: ShardedSave) -> Callable[[], None]:
        """Take a snapshot; the returned function writes it, in any thread, and reports to the other ranks."""
        from strop.training.ranks.sharded_save import shard_writers, write_shard

        assert self.store is not None
        files = shard_writers(save, self.model(save.model).snapshot(), self._dims[save.model].replica_ranks)
        return partial(write_shard, save, files, self.store)

    def save(self, save: ShardedSave) -> None:
        """Take a snapshot, and write this rank's shard of it in a thread."""
        Thread(target=self.begin_save(save), name="strop-save", daemon=True).start()

    def _set_collective_timeout(self) -> None:
        """Set it for new groups, which do not take it over from the group of all ranks."""
        if self._collective_timeout_seconds is not None:
            from strop.training.ranks.rendezvous import set_collective_timeout

            set_collective_timeout(self._collective_timeout_seconds)

    def _parallelizer(self, name: str, engine: TrainingEngineConfig) -> Parallelizer:
        """The parallelizer of a model; models of the same dimensions share the meshes. Those of several ranks are
        imported where a run has them."""
        dims = self._dims[name] = ParallelDims.of(engine)
        if isinstance(engine, LocalEngineConfig):
            if self.ranks == 1:
                return SingleDevice(self.device)
            from strop.training.parallel.shared_memory import SharedMemoryParallelizer

            return SharedMemoryParallelizer(self.device, self.rank, self.ranks)
        if dims not in self._meshes:
            self._meshes[dims] = dims.build_meshes(self.device.type)
        meshes = self._meshes[dims]
        if isinstance(engine, DeepSpeedEngineConfig):
            from strop.training.parallel.zero import ZeroParallelizer

            return ZeroParallelizer.of(engine, self.device, meshes)
        assert isinstance(engine, Fsdp2EngineConfig)
        from strop.training.parallel.fsdp2 import Fsdp2Parallelizer

        return Fsdp2Parallelizer(self.device, meshes, engine)


class SingleRank:
    """The ranks of a run of one process: this one, without a process group."""

    ranks = 1
    has_failed = False
    """False: an error of this process leaves it as it is."""

    def __init__(self, device: torch.device) -> None:
        self.first = Rank(device)
        """The rank of this process."""
        self.device = device

    def run(self, operation: Callable[Concatenate[Rank, P], T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Run an operation on the rank; a list of its result."""
        return [operation(self.first, *args, **kwargs)]

    def run_on_model(
        self, name: str, operation: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> list[T]:
        """As `run`, an operation of a model."""
        return [operation(self.first.model(name), *args, **kwargs)]

    def run_each(
        self,
        operation: Callable[Concatenate[Rank, A, P], T],
        own: Sequence[A],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[T]:
        """As `run`, with a first argument for each rank of its own."""
        return [operation(self.first, own[0], *args, **kwargs)]

    def on_others(
        self, operation: Callable[Concatenate[Rank, P], object], *args: P.args, **kwargs: P.kwargs
    ) -> AbstractContextManager[None]:
        """A context in which nothing else happens, since there are no other ranks to run the operation."""
        return nullcontext()

    def close(self) -> None:
        """Free the models."""
        self.first = Rank(self.device)

    def snapshot(self, name: str, concurrency: SaveConcurrency) -> EngineSnapshot:
        """The state of a model, for a checkpoint, which it writes as its own section says."""
        snapshot: EngineSnapshot = self.first.model(name).snapshot()
        return snapshot
