"""The backends fsdp2 and deepspeed: training engines on several ranks, controlled from the first rank's process.

The controller plans micro-batches from lengths and sends each rank its own experiences and the loss as data;
the rank builds its micro-batches and holds a shard of every parameter, gradient and optimizer state.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from strop.algorithms.losses.value_losses import ValueLoss
from strop.algorithms.registry import AnyLossSpec
from strop.config.deepspeed import read_config, resolved, zero_settings
from strop.config.schema import Run
from strop.config.schema.policy_gradient import CriticConfig, ProcessRewardConfig
from strop.config.schema.record import SaveConcurrency
from strop.config.schema.trainer import DeepSpeedEngineConfig, Fsdp2EngineConfig
from strop.config.units import Amount
from strop.data.packing import MicroBatchPlan
from strop.errors import PlacementError
from strop.protocols import CriticEngine, FileChecksum, SharedWeights, TokenQuantity, TrainingEngine
from strop.training.checkpoints.file_writer import write_order, writes_in_parallel
from strop.training.device import find_rank_device_type
from strop.training.optimized_model import sum_metrics
from strop.training.parallel.mesh import ParallelDims
from strop.training.parallel.zero import import_deepspeed
from strop.training.ranks.group import RankGroup
from strop.training.ranks.messages import (
    CRITIC,
    POLICY,
    BuildCritic,
    BuildPolicy,
    ComputeTokenValues,
    CountExpertTokens,
    CriticForwardBackward,
    EvaluateLoss,
    JoinExport,
    JoinIterWeights,
    JoinWriteAdapter,
    LoadCheckpoint,
    OptimizerStep,
    PolicyForwardBackward,
    RankMessage,
    SaveCheckpoint,
    SetLr,
    SetWeightDecay,
)
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
from strop.workers.cleanup import closing
from strop.workers.start import LOCAL, RankPlacement


@dataclass(frozen=True, slots=True)
class ShardedSnapshot:
    """The current state of a model on the ranks; no rank ever holds another's shard."""

    group: RankGroup
    model: str
    """Name of the model on the ranks."""
    save_concurrency: SaveConcurrency
    """Which ranks and threads write at the same time."""

    def begin_write(self, folder: Path, *, copied: bool = False) -> Callable[[], Mapping[str, FileChecksum]]:
        """See `strop.protocols.EngineSnapshot`."""
        save = SaveCheckpoint(
            save_id=secrets.token_hex(8),
            folder=folder.absolute(),
            model=self.model,
            copy_tensors=copied,
            parallel_files=writes_in_parallel(self.save_concurrency),
            write_order=write_order(self.save_concurrency, self.group.nodes),
        )
        return self.group.begin_save(save)


def describe_mesh(dims: ParallelDims, kind: str) -> str:
    """Description of how a model is divided over ranks, which are `kind` (processes or GPUs)."""
    if dims.shard_ranks == 1:
        kind = {"processes": "process", "GPUs": "GPU"}[kind]
    parts = [f"sharded over {dims.shard_ranks} {kind} (FSDP2)"]
    if dims.replicate > 1:
        parts.append(f"{dims.replicate} replicas")
    if dims.sp > 1:
        parts.append(f"tokens divided over {dims.sp}")
    if dims.tp > 1:
        parts.append(f"matrices divided over {dims.tp}")
    return ", ".join(parts)


class RankedEngine:
    """Operations that the policy's and the critic's engine share."""

    collective = True
    """Whether a forward pass is an operation of all ranks."""

    def __init__(self, group: RankGroup, model: str, spec: PolicySpec | CriticSpec) -> None:
        self._group = group
        self._model = model
        self._dims = ParallelDims.of(spec.engine)
        self._microbatch: Amount = spec.microbatch
        self._save_concurrency = spec.checkpoint.save_concurrency
        self.supports_shared_prompts: bool = group.worker.model(model).supports_shared_prompts
        self._hidden_size: int = group.worker.model(model).hidden_size

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update."""
        self._group.run(SetLr(self._model, lr))

    def step(self) -> float:
        """Clip by the norm over all ranks, and update; returns the norm before clipping."""
        norm: float = self._group.run(OptimizerStep(self._model))[0]
        return norm

    def snapshot(self) -> ShardedSnapshot:
        """The state on all ranks, for a checkpoint."""
        return ShardedSnapshot(self._group, self._model, self._save_concurrency)

    def load(self, folder: Path) -> None:
        """Restore the state that a snapshot wrote, on any number of ranks.

        Dropout continues exactly where the number of ranks is the same. Raises CheckpointError for another
        model's state.
        """
        self._group.run(LoadCheckpoint(self._model, folder))

    def _plan(self, experiences: Sequence[Experience]) -> RankPlan:
        if not self.collective:
            return plan_for_workers(
                experiences,
                self._microbatch,
                workers=self._dims.dp,
                hidden_size=self._hidden_size,
                share_prompts=self.supports_shared_prompts,
            )
        return plan_for_ranks(
            experiences,
            self._microbatch,
            ranks=self._dims.dp,
            hidden_size=self._hidden_size,
            share_prompts=self.supports_shared_prompts,
        )

    def _shares(self, batch: TrainingBatch, plans: Sequence[MicroBatchPlan | None]) -> list[RankShare]:
        """The share of each rank; the ranks of one data-parallel rank get the same."""
        shares = plan_rank_shares(batch, plans, self._dims.dp, collective=self.collective)
        return [shares[self._dims.data_rank(rank)] for rank in range(self._dims.ranks)]

    def _run_shares(self, messages: Sequence[RankMessage]) -> list[Any]:
        """Run each rank's message; the results by data-parallel rank."""
        results = self._group.run_each(messages)
        return [results[rank] for rank in self._dims.leaders()]

    def token_values(
        self,
        experiences: Sequence[Experience],
        quantity: TokenQuantity | Literal["values"],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> list[FloatArray]:
        """[L] of each experience: a quantity at each of its targets, the policy's or a critic's `values`.

        The ranks compute one micro-batch each at a time, with `check` in between.
        """
        batch, plans = TrainingBatch(experiences), self._plan(experiences)
        found: dict[int, FloatArray] = {}
        for start in range(0, len(plans), self._dims.dp):
            shares = self._shares(batch, plans[start : start + self._dims.dp])
            for values in self._run_shares([ComputeTokenValues(share, quantity) for share in shares]):
                found |= values
            check()
        return [found[number] for number in range(len(experiences))]


class RankedPolicyEngine(RankedEngine):
    """A policy's training engine on several ranks."""

    def __init__(self, group: RankGroup, run: Run, method: str = "") -> None:
        """`method` says how the model is divided, for the description."""
        spec = PolicySpec.of(run)
        group.run(BuildPolicy(spec))
        super().__init__(group, POLICY, spec)
        self.policy: PolicyModel = group.worker.model(POLICY)
        """The first rank's shard."""
        self.shared_prompts_obstacle = self.policy.shared_prompts_obstacle
        self._dtype: torch.dtype = getattr(torch, run.model.compute_dtype or run.model.dtype)
        kind = "processes" if group.device.type == "cpu" else "GPUs"
        note = f"; {self.policy.note}" if self.policy.note else ""
        described = method or describe_mesh(self._dims, kind)
        self.description = f"{described}{note}"

    def forward_backward(
        self, batch: TrainingBatch, loss: AnyLossSpec, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """Add the gradient of the loss over a batch; returns the loss's metrics and `loss` itself."""
        counts = counts or GlobalCounts.of(batch.experiences)
        shares = self._shares(batch, self._plan(batch.experiences))
        expert_load = None
        if self.policy.needs_expert_load:
            tokens = sum(self._run_shares([CountExpertTokens(share) for share in shares]))
            expert_load = tokens / counts.all_tokens
        return sum_metrics(
            self._run_shares([PolicyForwardBackward(share, loss, counts, expert_load) for share in shares])
        )

    def evaluate_loss(
        self, batch: TrainingBatch, loss: AnyLossSpec, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """The loss over a batch and its metrics, without a gradient."""
        counts = counts or GlobalCounts.of(batch.experiences)
        shares = self._shares(batch, self._plan(batch.experiences))
        rows = self._run_shares([EvaluateLoss(share, loss, counts) for share in shares])
        return sum_metrics(interleave(rows))

    def set_weight_decay(self, weight_decay: float) -> None:
        """Set the weight decay of the next update."""
        self._group.run(SetWeightDecay(POLICY, weight_decay))

    def sync_reference(self, policy_weight: float) -> None:
        """Not supported on ranks, which the configuration's checks refuse. Raises ValueError."""
        raise ValueError("the reference model of several ranks does not change")

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights, adapters merged, in the compute dtype; gathered one tensor at a time."""
        with self._group.on_others(JoinIterWeights()):
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
        with self._group.on_others(JoinExport()):
            self.policy.export(folder, add_files)

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format. Raises ModelError for a model without one."""
        with self._group.on_others(JoinWriteAdapter()):
            self.policy.write_adapter(folder)


class RankedCriticEngine(RankedEngine):
    """A critic's training engine on several ranks."""

    def __init__(self, group: RankGroup, run: Run, critic: CriticConfig) -> None:
        spec = CriticSpec.of(run, critic)
        group.run(BuildCritic(spec))
        super().__init__(group, CRITIC, spec)
        self.critic: CriticModel = group.worker.model(CRITIC)
        """The first rank's shard."""

    def forward_backward(
        self, batch: TrainingBatch, loss: ValueLoss, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """Add the gradient of the loss over a batch; returns the loss's metrics and `loss` itself."""
        counts = counts or GlobalCounts.of(batch.experiences)
        shares = self._shares(batch, self._plan(batch.experiences))
        return sum_metrics(self._run_shares([CriticForwardBackward(share, loss, counts) for share in shares]))

    def values(self, experiences: Sequence[Experience]) -> list[FloatArray]:
        """[L] of each experience: value of the state before each target, under the current weights."""
        return self.token_values(experiences, "values")


class RankedBackend:
    """Builds the engines of one run on a group of ranks."""

    def __init__(self, run: Run, group: RankGroup, method: str = "") -> None:
        self._run = run
        self._group = group
        self._method = method

    def policy(self) -> TrainingEngine:
        """The policy's engine."""
        return RankedPolicyEngine(self._group, self._run, self._method)

    def critic(self, section: CriticConfig) -> CriticEngine:
        """The critic's engine."""
        return RankedCriticEngine(self._group, self._run, section)

    def process_reward(self, section: ProcessRewardConfig) -> TrainingEngine:
        """Raises PlacementError: ranks have a policy and a critic, and no second language model."""
        raise PlacementError(
            "algorithm.type prime trains a second language model, which trainer.engine.type fsdp2 does not have; "
            "write trainer.engine: local."
        )


@contextmanager
def open_fsdp2(run: Run, placement: RankPlacement = LOCAL) -> Iterator[RankedBackend]:
    """The backend of `trainer.engine.type: fsdp2`; at the end of the context its ranks end.

    Ranks other than the first start at `placement`. Raises PlacementError for devices that do not exist.
    """
    section = run.trainer.engine
    assert isinstance(section, Fsdp2EngineConfig)
    ParallelDims.of(section)  # raises for sizes that do not fit
    device = find_rank_device_type(section.device, section.ranks, placement)
    group = RankGroup.of(section, device, placement)
    with closing(group):
        yield RankedBackend(run, group)


@contextmanager
def open_deepspeed(run: Run, placement: RankPlacement = LOCAL) -> Iterator[RankedBackend]:
    """The backend of `trainer.engine.type: deepspeed`; at the end of the context its ranks end.

    Ranks other than the first start at `placement`. Raises MissingExtraError without DeepSpeed, and PlacementError
    for devices that do not exist.
    """
    section = run.trainer.engine
    assert isinstance(section, DeepSpeedEngineConfig)
    device = find_rank_device_type(section.device, section.ranks, placement)
    if device == "cpu" and run.model.compute_dtype == "float16":
        raise PlacementError(
            "model.compute_dtype is float16, which DeepSpeed computes on GPUs only. Write bfloat16 or float32."
        )
    import_deepspeed(device)
    section = resolved(section)  # other nodes do not have its file
    run = run.model_copy(update={"trainer": run.trainer.model_copy(update={"engine": section})})
    group = RankGroup.of(section, device, placement)
    with closing(group):
        yield RankedBackend(run, group, describe_division(section, device))


def describe_division(section: DeepSpeedEngineConfig, device: str) -> str:
    """Division of a model over the ranks, for the run's description."""
    settings = zero_settings(section, read_config(section))
    offloads = {"optimizer": settings.offload_optimizer, "parameters": settings.offload_parameters}
    offloaded = " and ".join(name for name, is_on in offloads.items() if is_on)
    kind = "processes" if device == "cpu" else "GPUs"
    tokens = f", tokens divided over {section.sequence_parallel}" if section.sequence_parallel > 1 else ""
    return (
        f"divided over {section.ranks} {kind} (DeepSpeed ZeRO-{settings.stage}"
        f"{f', {offloaded} in CPU memory' if offloaded else ''}{tokens})"
    )
