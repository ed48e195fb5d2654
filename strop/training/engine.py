"""The training engine: a model on one rank or several, as one thing that is trained.

The engine plans micro-batches from lengths and gives each rank its own experiences and the loss as data; the rank
builds its micro-batches. How the model is divided over the ranks is the matter of `strop.training.parallel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from strop.algorithms.losses.value_losses import ValueLoss
from strop.algorithms.registry import AnyLossSpec
from strop.config.schema import Run
from strop.config.schema.policy_gradient import CriticConfig
from strop.config.schema.trainer import LocalEngineConfig
from strop.data.packing import MicroBatchPlan
from strop.protocols import EngineSnapshot, SharedWeights, TokenQuantity
from strop.training.device import find_device
from strop.training.optimized_model import OptimizedModel, sum_metrics
from strop.training.parallel.mesh import ParallelDims
from strop.training.ranks.rank import CRITIC, POLICY, Rank, SingleRank
from strop.training.ranks.share import (
    RankPlan,
    RankShare,
    interleave,
    plan_for_ranks,
    plan_for_workers,
    plan_rank_shares,
)
from strop.training.specs import CriticSpec, PolicySpec
from strop.training.trained_models import CriticModel, PolicyModel
from strop.types import Experience, FloatArray, GlobalCounts, TrainingBatch

if TYPE_CHECKING:
    from strop.training.ranks.group import RankGroup

P = ParamSpec("P")
T = TypeVar("T")


class ModelEngine:
    """Base of the engines of a policy and of a critic."""

    def __init__(self, ranks: SingleRank | RankGroup, name: str, spec: PolicySpec | CriticSpec) -> None:
        """`name` is the model's on the ranks, where it is already."""
        self._ranks, self._name = ranks, name
        self._dims = ParallelDims.of(spec.engine)
        self._is_collective = not isinstance(spec.engine, LocalEngineConfig)
        """Whether the model is divided, so that a forward pass is an operation of all ranks."""
        self._microbatch = spec.microbatch
        self._save_concurrency = spec.checkpoint.save_concurrency
        model: PolicyModel | CriticModel = ranks.first.model(name)
        self.supports_shared_prompts: bool = model.supports_shared_prompts
        self._hidden_size: int = model.hidden_size

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update."""
        self._ranks.run_on_model(self._name, OptimizedModel.set_lr, lr)

    def step(self) -> float:
        """Clip the gradient by its norm over all ranks, update the weights, clear the gradient; returns the norm before
        clipping."""
        return self._ranks.run_on_model(self._name, OptimizedModel.step)[0]

    def snapshot(self) -> EngineSnapshot:
        """Weights, optimizer state and random states, for a checkpoint."""
        return self._ranks.snapshot(self._name, self._save_concurrency)

    def load(self, folder: Path) -> None:
        """Restore the state that a snapshot wrote, on any number of ranks; dropout continues exactly where the number
        is the same. Raises CheckpointError for another model's state."""
        self._ranks.run(Rank.load, self._name, folder)

    def _run_shares(
        self,
        batch: TrainingBatch,
        plan: Sequence[MicroBatchPlan | None],
        operation: Callable[Concatenate[Rank, RankShare, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[T]:
        """Run an operation on each rank's share of a batch; the results by data-parallel rank, of which all ranks get
        the same share."""
        shares = plan_rank_shares(batch, plan, self._dims.dp, collective=self._is_collective)
        own = [shares[self._dims.data_rank(rank)] for rank in range(self._dims.ranks)]
        results = self._ranks.run_each(operation, own, *args, **kwargs)
        return [results[rank] for rank in self._dims.leaders()]

    def _plan(self, experiences: Sequence[Experience]) -> RankPlan:
        plan = plan_for_ranks if self._is_collective else plan_for_workers
        return plan(
            experiences,
            self._microbatch,
            ranks=self._dims.dp,
            hidden_size=self._hidden_size,
            share_prompts=self.supports_shared_prompts,
        )

    def _values(
        self,
        experiences: Sequence[Experience],
        check: Callable[[], None],
        operation: Callable[Concatenate[Rank, RankShare, P], dict[int, FloatArray]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[FloatArray]:
        """[L] of each experience; the ranks compute one micro-batch each at a time, with `check` in between."""
        batch, plan = TrainingBatch(experiences), self._plan(experiences)
        found: dict[int, FloatArray] = {}
        for start in range(0, len(plan), self._dims.dp):
            part = plan[start : start + self._dims.dp]
            for values in self._run_shares(batch, part, operation, *args, **kwargs):
                found |= values
            check()
        return [found[number] for number in range(len(experiences))]


class PolicyEngine(ModelEngine):
    """Trains a language model or classifier that is whole in this process, alone or with workers that map it.

    The calls are those of `strop.protocols.TrainingEngine`.
    """

    def __init__(
        self, ranks: SingleRank | RankGroup, spec: PolicySpec, description: str, *, name: str = POLICY
    ) -> None:
        """Builds the model on the ranks. Raises ModelError for one that cannot be trained."""
        ranks.run(Rank.build_policy, name, spec)
        super().__init__(ranks, name, spec)
        self.policy: PolicyModel = ranks.first.model(name)
        """The model, or the first rank's shard of it."""
        self.shared_prompts_obstacle = self.policy.shared_prompts_obstacle
        self.description = f"{description}; {self.policy.note}" if self.policy.note else description

    def forward_backward(
        self, batch: TrainingBatch, loss: AnyLossSpec, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """Add the gradient of the loss over a batch; returns the loss's metrics and `loss` itself."""
        counts = counts or GlobalCounts.of(batch.experiences)
        plan = self._plan(batch.experiences)
        expert_load: npt.NDArray[np.float64] | None = None
        if self.policy.needs_expert_load:
            counted = self._run_shares(batch, plan, Rank.expert_counts, self._name)
            expert_load = np.sum(counted, axis=0) / counts.all_tokens
        return sum_metrics(
            self._run_shares(batch, plan, Rank.forward_backward, self._name, loss, counts, expert_load)
        )

    def evaluate_loss(
        self, batch: TrainingBatch, loss: AnyLossSpec, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """The loss over a batch and its metrics, without a gradient."""
        counts = counts or GlobalCounts.of(batch.experiences)
        plan = self._plan(batch.experiences)
        return sum_metrics(
            interleave(self._run_shares(batch, plan, Rank.evaluate_loss, self._name, loss, counts))
        )

    def token_values(
        self,
        experiences: Sequence[Experience],
        quantity: TokenQuantity,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> list[FloatArray]:
        """[L] of each experience: a quantity at each of its targets; `check` is called between micro-batches."""
        return self._values(experiences, check, Rank.token_values, self._name, quantity)

    def set_weight_decay(self, weight_decay: float) -> None:
        """Set the weight decay of the next update."""
        self._ranks.run_on_model(self._name, OptimizedModel.set_weight_decay, weight_decay)

    def sync_reference(self, policy_weight: float) -> None:
        """Move the weights of the reference model, which all workers share, towards the policy's."""
        self.policy.sync_reference(policy_weight)

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights, adapters merged, with Hugging Face names, in the compute dtype."""
        return self.policy.iter_weights()

    def shared_weights(self) -> SharedWeights:
        """Handle of the weights, which an engine on the same device reads in place; so do as many engines in other
        processes of this machine as there are workers."""
        weights, shared = self.policy.shared_weights(), self.policy.shared_tensors
        if shared is None:
            return weights
        from strop.models.shared_weights import MappedWeights

        mapped = MappedWeights.of(weights, shared, self._ranks.ranks, torch.get_num_threads())
        return replace(weights, mapped=mapped)

    def export(self, folder: Path, add_files: Callable[[Path], object] = lambda folder: None) -> None:
        """Write a Hugging Face folder. Raises ModelError where it cannot be written."""
        self.policy.export(folder, add_files)

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format. Raises ModelError for a model without one."""
        self.policy.write_adapter(folder)


class ShardedPolicyEngine(PolicyEngine):
    """Trains a language model or classifier that is divided over the ranks, which take part in all that reads it."""

    def __init__(
        self, ranks: SingleRank | RankGroup, spec: PolicySpec, description: str, *, name: str = POLICY
    ) -> None:
        super().__init__(ranks, spec, description, name=name)
        self._dtype: torch.dtype = getattr(torch, spec.model.compute_dtype or spec.model.dtype)

    def sync_reference(self, policy_weight: float) -> None:
        """Not supported on ranks, which the configuration's checks refuse. Raises ValueError."""
        raise ValueError("the reference model of several ranks does not change")

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights, adapters merged, in the compute dtype; gathered one tensor at a time."""
        with self._with_others(Rank.join_iter_weights):
            for name, weight in self.policy.iter_weights():
                yield name, weight.to(self._dtype) if weight.is_floating_point() else weight

    def shared_weights(self) -> SharedWeights:
        """Handle of the weights; since they are sharded, its tensors are copies."""
        base = self.policy.compute_model
        return SharedWeights(
            config=base.config,
            generation_config=base.generation_config,
            device=base.device,
            dtype=self._dtype,
            tensors=self.iter_weights,
            image_processor=lambda: self.policy.images.processor,
        )

    def export(self, folder: Path, add_files: Callable[[Path], object] = lambda folder: None) -> None:
        """Write a Hugging Face folder. Raises ModelError where it cannot be written."""
        with self._with_others(Rank.join_export):
            self.policy.export(folder, add_files)

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format. Raises ModelError for a model without one."""
        with self._with_others(Rank.join_write_adapter):
            self.policy.write_adapter(folder)

    def _with_others(self, operation: Callable[[Rank, str], Any]) -> AbstractContextManager[None]:
        return self._ranks.on_others(operation, self._name)


class CriticEngine(ModelEngine):
    """Trains a value model: the counterpart of a policy's engine for a critic."""

    def __init__(self, ranks: SingleRank | RankGroup, spec: CriticSpec) -> None:
        """Builds the model on the ranks. Raises ModelError for one that cannot be trained."""
        ranks.run(Rank.build_critic, spec)
        super().__init__(ranks, CRITIC, spec)
        self.critic: CriticModel = ranks.first.model(CRITIC)
        """The model, or the first rank's shard of it."""

    def forward_backward(
        self, batch: TrainingBatch, loss: ValueLoss, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """Add the gradient of the loss over a batch; returns the loss's metrics and `loss` itself."""
        counts = counts or GlobalCounts.of(batch.experiences)
        plan = self._plan(batch.experiences)
        return sum_metrics(self._run_shares(batch, plan, Rank.critic_forward_backward, loss, counts))

    def values(self, experiences: Sequence[Experience]) -> list[FloatArray]:
        """[L] of each experience: value of the state before each target, under the current weights."""
        return self._values(experiences, lambda: None, Rank.critic_values)


def local_policy(run: Run, spec: PolicySpec | None = None) -> PolicyEngine:
    """The engine of a language model in this process: the run's policy, or the model of `spec`.

    Raises ModelError for a model that cannot be trained, PlacementError for a device that does not exist.
    """
    device = find_device(run.trainer.engine.device)
    spec = replace(spec or PolicySpec.of(run), engine=LocalEngineConfig(workers=1))
    return PolicyEngine(SingleRank(device), spec, f"on {device}")


def local_critic(run: Run, section: CriticConfig) -> CriticEngine:
    """The engine of a critic in this process. Raises as `local_policy` does."""
    spec = replace(CriticSpec.of(run, section), engine=LocalEngineConfig(workers=1))
    return CriticEngine(SingleRank(find_device(run.trainer.engine.device)), spec)
