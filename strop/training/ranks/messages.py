"""Messages from the controller to its ranks: data, with the operation that each rank runs on receipt.

Every rank runs the same message at the same time (SPMD), the first one in the controller's own process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from strop.algorithms.losses.value_losses import ValueLoss
from strop.algorithms.registry import AnyLossSpec
from strop.config.schema.trainer import RankNetworkConfig
from strop.models.formats.huggingface import join_export
from strop.protocols import TokenQuantity
from strop.training.checkpoints.file_writer import rng_file_name
from strop.training.checkpoints.tensors import get_rng_state, read_tensors, set_rng_state
from strop.training.ranks.share import IdleSafeLoss, RankShare
from strop.training.specs import CriticSpec, PolicySpec
from strop.training.trained_models import CriticModel, PolicyModel
from strop.types import FloatArray, GlobalCounts
from strop.workers.worker import RemoteFailure

POLICY, CRITIC = "policy", "critic"
"""Names of the models on a rank."""


@dataclass(frozen=True, slots=True)
class RankSpec:
    """Settings of one rank."""

    rank: int
    ranks: int
    """Number of ranks."""
    device: Literal["cpu", "cuda"]
    """`cuda` is one GPU for each rank."""
    device_index: int
    """Index of the GPU among those that the process sees, for `cuda`."""
    init_method: str
    """Rendezvous of the ranks: URL of a file that does not exist yet, or of an address on the first rank's node."""
    collective_timeout_seconds: float
    """Maximum time that the rank waits for the others in a collective operation."""
    network: RankNetworkConfig = field(default_factory=RankNetworkConfig)
    """Network between the ranks."""
    threads: int | None = None
    """Number of threads of torch; None for torch's own choice."""


class Rank(Protocol):
    """The rank that runs a message; see `strop.training.ranks.rank_worker.RankWorker`."""

    def build_policy(self, spec: PolicySpec, name: str = POLICY) -> None:
        """Build this rank's shard of a policy."""
        ...

    def build_critic(self, spec: CriticSpec) -> None:
        """Build this rank's shard of the critic."""
        ...

    def model(self, name: str) -> Any:
        """The model with a name."""
        ...

    def remove(self, name: str) -> None:
        """Free a model."""
        ...

    def begin_save(self, save: SaveCheckpoint) -> Callable[[], None]:
        """Take a snapshot; the returned function writes it."""
        ...


class RankMessage(Protocol):
    """An operation that one rank runs as its part of a collective one."""

    def run(self, worker: Rank) -> Any:
        """Run it on a rank; the result goes back to the controller."""
        ...


@dataclass(frozen=True, slots=True)
class BuildPolicy:
    """Build a policy's shard."""

    spec: PolicySpec
    name: str = POLICY

    def run(self, worker: Rank) -> None:
        worker.build_policy(self.spec, self.name)


@dataclass(frozen=True, slots=True)
class BuildCritic:
    """Build the critic's shard."""

    spec: CriticSpec

    def run(self, worker: Rank) -> None:
        worker.build_critic(self.spec)


@dataclass(frozen=True, slots=True)
class PolicyForwardBackward:
    """Add the gradient of the rank's share; the result is the share's metrics."""

    share: RankShare
    loss: AnyLossSpec
    counts: GlobalCounts
    expert_load: npt.NDArray[np.float64] | None = None
    """[layers, E] Fraction of the update's tokens that each router gives to each expert; None where not needed."""

    def run(self, worker: Rank) -> dict[str, float]:
        policy: PolicyModel = worker.model(POLICY)
        metrics = policy.forward_backward(
            self.share.micro_batches(policy.device, policy.images),
            IdleSafeLoss(self.loss.build()),
            self.counts,
            entropy=self.loss.needs_entropy,
            divergence=self.loss.needs_divergence,
            teacher_divergence=self.loss.teacher_divergence,
            expert_load=None if self.expert_load is None else torch.from_numpy(self.expert_load),
        )
        return dict(metrics)


@dataclass(frozen=True, slots=True)
class CountExpertTokens:
    """Count the tokens of the rank's share that each router gives to each expert; the result is [layers, E]."""

    share: RankShare

    def run(self, worker: Rank) -> npt.NDArray[np.float64]:
        policy: PolicyModel = worker.model(POLICY)
        micro_batches = self.share.micro_batches(policy.device, policy.images)
        counts: npt.NDArray[np.float64] = policy.expert_counts(micro_batches).cpu().numpy()
        return counts


@dataclass(frozen=True, slots=True)
class CriticForwardBackward:
    """Add the gradient of the rank's share; the result is the share's metrics."""

    share: RankShare
    loss: ValueLoss
    counts: GlobalCounts

    def run(self, worker: Rank) -> dict[str, float]:
        critic: CriticModel = worker.model(CRITIC)
        micro_batches = self.share.micro_batches(critic.device, critic.images)
        return dict(critic.forward_backward(micro_batches, IdleSafeLoss(self.loss), self.counts))


@dataclass(frozen=True, slots=True)
class EvaluateLoss:
    """Compute the loss of the rank's share without a gradient; the result is each micro-batch's metrics."""

    share: RankShare
    loss: AnyLossSpec
    counts: GlobalCounts

    def run(self, worker: Rank) -> list[dict[str, float]]:
        policy: PolicyModel = worker.model(POLICY)
        micro_batches = self.share.micro_batches(policy.device, policy.images)
        return policy.evaluate_loss(micro_batches, self.loss.build(), self.counts)


@dataclass(frozen=True, slots=True)
class ComputeTokenValues:
    """Compute a quantity at each target of the rank's share; the result is [L] by the experience's number."""

    share: RankShare
    quantity: TokenQuantity | Literal["values"]
    """The policy's, or the critic's `values`."""

    def run(self, worker: Rank) -> dict[int, FloatArray]:
        model: Any = worker.model(CRITIC if self.quantity == "values" else POLICY)
        micro_batches = list(self.share.micro_batches(model.device, model.images))
        if self.quantity == "values":
            return self.share.unpack(micro_batches, model.values(micro_batches))
        return self.share.unpack(micro_batches, model.token_values(micro_batches, self.quantity))


@dataclass(frozen=True, slots=True)
class SetLr:
    """Set the learning rate of the next update."""

    model: str
    lr: float

    def run(self, worker: Rank) -> None:
        worker.model(self.model).set_lr(self.lr)


@dataclass(frozen=True, slots=True)
class SetWeightDecay:
    """Set the weight decay of the next update."""

    model: str
    weight_decay: float

    def run(self, worker: Rank) -> None:
        worker.model(self.model).set_weight_decay(self.weight_decay)


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """Clip by the norm over all ranks, and update; the result is the norm before clipping."""

    model: str

    def run(self, worker: Rank) -> float:
        norm: float = worker.model(self.model).step()
        return norm


@dataclass(frozen=True, slots=True)
class JoinIterWeights:
    """Join the gathering of the full weights on the first rank."""

    def run(self, worker: Rank) -> None:
        for _ in worker.model(POLICY).iter_weights():
            pass


@dataclass(frozen=True, slots=True)
class JoinExport:
    """Join the export of the model by the first rank."""

    def run(self, worker: Rank) -> None:
        join_export(worker.model(POLICY).master)


@dataclass(frozen=True, slots=True)
class JoinWriteAdapter:
    """Join the writing of the adapter by the first rank."""

    model: str = POLICY

    def run(self, worker: Rank) -> None:
        worker.model(self.model).join_write_adapter()


@dataclass(frozen=True, slots=True)
class LoadCheckpoint:
    """Restore a model's state from a checkpoint of any number of ranks."""

    model: str
    folder: Path

    def run(self, worker: Rank) -> None:
        model = worker.model(self.model)
        rank, before = distributed.get_rank(), get_rng_state(model.device)
        model.load(self.folder)
        if rank and self.model != CRITIC:
            # The first rank's random state has been read; this rank has its own, if it was saved.
            states = self.folder / rng_file_name(rank)
            set_rng_state(model.device, read_tensors(states) if states.exists() else before)


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Take a snapshot of a model, and write this rank's shard of it in a thread."""

    save_id: str
    """Id of this save in the ranks' key-value store."""
    folder: Path
    """Folder that all ranks write to."""
    model: str
    """Name of the model on the ranks."""
    copy_tensors: bool
    """Whether the state is copied first, because training continues during the write."""
    parallel_files: bool
    """Whether one rank writes its files in parallel."""
    write_order: tuple[frozenset[int], ...]
    """Ranks that write at the same time, in the order of their turns."""

    def run(self, worker: Rank) -> None:
        Thread(target=worker.begin_save(self), name="strop-save", daemon=True).start()


@dataclass(frozen=True, slots=True)
class RankResult:
    """Result of a message."""

    result: Any


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The error that ended a rank."""

    failure: RemoteFailure
    is_consequence: bool
    """Whether it may be the consequence of another rank's end, as torch reports it in a collective operation."""
