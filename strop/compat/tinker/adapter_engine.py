"""Training engines of clients' adapters: in this process with shared base weights, or on FSDP2 ranks."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from strop.compat.tinker.losses import NamedLoss
from strop.config.schema import Run
from strop.config.schema.trainer import Fsdp2EngineConfig, LocalEngineConfig
from strop.errors import TrainingError
from strop.training.device import find_rank_device_type
from strop.training.engine import ModelEngine
from strop.training.optimized_model import sum_metrics
from strop.training.ranks.group import RankGroup
from strop.training.ranks.rank import Rank, SingleRank
from strop.training.ranks.share import IdleSafeLoss, RankShare, interleave
from strop.training.specs import PolicySpec
from strop.training.trained_models import PolicyModel
from strop.types import FloatArray, GlobalCounts, TrainingBatch
from strop.workers.start import LOCAL


@dataclass(frozen=True, slots=True)
class AdamStep:
    """Settings of one update."""

    lr: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    max_grad_norm: float | None
    """Maximum gradient norm; None for no clipping."""


class AdapterEngines:
    """Opens the engines of a service, on ranks that all of its adapters share."""

    def __init__(self, ranks: int = 1) -> None:
        """One rank is this process, in which all adapters use the same weights of the base model; on several each has
        a shard of the model for every adapter. Raises PlacementError where this machine has fewer GPUs than ranks."""
        self.section = LocalEngineConfig() if ranks == 1 else Fsdp2EngineConfig(ranks=ranks)
        """Section `trainer.engine` of the runs."""
        self._device = find_rank_device_type("auto", ranks, LOCAL)
        self._ranks: SingleRank | RankGroup | None = None
        self._numbers = itertools.count()
        self._frozen: dict[str, Tensor] = {}

    def open(self, run: Run) -> AdapterEngine:
        """The engine of a new adapter. Starts the ranks, if there are none or an operation has failed on one.

        Raises ModelError for a model that cannot be trained.
        """
        if self._ranks is not None and self._ranks.has_failed:
            self.close()
        if self._ranks is None:
            if isinstance(self.section, LocalEngineConfig):
                self._ranks = SingleRank(torch.device(self._device))
            else:
                self._ranks = RankGroup.of(self.section, self._device, LOCAL)
        engine = AdapterEngine(self._ranks, run, f"adapter-{next(self._numbers)}")
        if isinstance(self._ranks, SingleRank):
            self._share_base(engine.policy)
        return engine

    def close(self) -> None:
        """End the ranks."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    def _share_base(self, policy: PolicyModel) -> None:
        """Let an adapter use the frozen weights of the first one."""
        for module in {policy.master, policy.model}:
            for name, parameter in module.named_parameters():
                if not parameter.requires_grad:
                    parameter.data = self._frozen.setdefault(f"{name} {parameter.dtype}", parameter.data)


class AdapterEngine(ModelEngine):
    """Training engine of one adapter. A TrainingError for numbers that are not finite drops the gradient."""

    def __init__(self, ranks: SingleRank | RankGroup, run: Run, name: str) -> None:
        """`name` is the adapter's on the ranks. Raises ModelError for a model that cannot be trained."""
        spec = replace(PolicySpec.of(run), needs_reference=False)
        ranks.run(Rank.build_policy, name, spec)
        super().__init__(ranks, name, spec)
        self.policy: PolicyModel = ranks.first.model(name)
        """The model with the adapter, or the first rank's shard of it."""

    @property
    def is_lost(self) -> bool:
        """Whether the ranks have ended, or will, so that a new engine starts from the last state."""
        return self._ranks.has_failed

    def compute(
        self, batch: TrainingBatch, loss: NamedLoss, *, backward: bool
    ) -> tuple[float, list[FloatArray]]:
        """The loss, and the log-probs of each experience's targets; adds the gradient if `backward`."""
        counts = GlobalCounts.of(batch.experiences)
        plan = self._plan(batch.experiences)
        passes = self._run_shares(batch, plan, compute_loss, self._name, loss, counts, backward)
        self._require([each.error for each in passes])
        found: dict[int, FloatArray] = {}
        for each in passes:
            found |= each.logprobs
        metrics = sum_metrics(interleave([each.metrics for each in passes]))
        return float(metrics["loss"]), [found[number] for number in range(len(batch.experiences))]

    def update(self, step: AdamStep) -> float:
        """Update the adapter; returns the norm of the gradient before clipping."""
        found = self._ranks.run_on_model(self._name, update, step)[0]
        self._require([found if isinstance(found, str) else None])
        return float(found)

    def reset_optimizer(self) -> None:
        """Start again with new moments."""
        self._ranks.run_on_model(self._name, PolicyModel.reset_optimizer)

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format."""
        with self._ranks.on_others(Rank.join_write_adapter, self._name):
            self.policy.write_adapter(folder)

    def close(self) -> None:
        """Free the memory."""
        if not self.is_lost:
            self._ranks.run(Rank.remove, self._name)

    def _require(self, errors: Sequence[str | None]) -> None:
        for error in errors:
            if error is not None:
                self._ranks.run_on_model(self._name, PolicyModel.drop_gradient)
                raise TrainingError(error)


@dataclass(frozen=True, slots=True)
class PassResult:
    """Result of a loss over the share of a rank."""

    metrics: Sequence[Mapping[str, float]]
    logprobs: Mapping[int, FloatArray]
    """[L] or [L, K] log-probs by the experience's number."""
    error: str | None = None
    """Message of the error for a loss that is not finite, which does not end the rank."""


def compute_loss(
    rank: Rank, share: RankShare, name: str, loss: NamedLoss, counts: GlobalCounts, backward: bool
) -> PassResult:
    """Compute a loss over the rank's share, and add its gradient."""
    policy: PolicyModel = rank.model(name)
    micro_batches = share.micro_batches(policy.device, policy.images)
    loss = replace(loss, logprobs=[])
    try:
        if backward:
            loss_fn = IdleSafeLoss(loss.build())
            metrics = [policy.forward_backward(micro_batches, loss_fn, counts, entropy=False)]
        else:
            metrics = [*policy.evaluate_loss(micro_batches, loss.build(), counts)]
    except TrainingError as error:
        return PassResult((), {}, str(error))
    built, values = zip(*loss.logprobs, strict=True) if loss.logprobs else ((), ())
    return PassResult([dict(each) for each in metrics], share.unpack(built, values))


def update(policy: PolicyModel, step: AdamStep) -> float | str:
    """Update an adapter; the norm before clipping, or the message of the error for one that is not finite."""
    policy.set_lr(step.lr)
    policy.set_weight_decay(step.weight_decay)
    policy.set_adam(step.betas, step.eps, step.max_grad_norm)
    try:
        return policy.step()
    except TrainingError as error:
        return str(error)
