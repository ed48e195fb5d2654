"""Training engines of clients' adapters: in this process with shared base weights, or on FSDP2 ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

from torch import Tensor

from strop.algorithms.registry import AnyLossSpec
from strop.compat.tinker.losses import NamedLoss
from strop.config.schema import Run
from strop.config.schema.trainer import Fsdp2EngineConfig, LocalEngineConfig, TrainingEngineConfig
from strop.data.packing import unpack
from strop.errors import TrainingError
from strop.training.backends.local import LocalEngine
from strop.training.backends.ranked import RankedEngine
from strop.training.device import find_rank_device_type
from strop.training.optimized_model import sum_metrics
from strop.training.ranks.group import RankGroup
from strop.training.ranks.messages import BuildPolicy, JoinWriteAdapter, Rank
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

    def apply(self, policy: PolicyModel) -> float:
        """Update the policy; returns the norm before clipping. Raises TrainingError for one that is not finite."""
        policy.set_lr(self.lr)
        policy.set_weight_decay(self.weight_decay)
        policy.set_adam(self.betas, self.eps, self.max_grad_norm)
        return policy.step()


class AdapterEngine(Protocol):
    """Training engine of one adapter. A TrainingError for numbers that are not finite drops the gradient."""

    @property
    def is_lost(self) -> bool:
        """Whether the processes that held the adapter have ended, so that a new engine starts from the last state."""
        ...

    def compute(
        self, batch: TrainingBatch, loss: NamedLoss, *, backward: bool
    ) -> tuple[float, list[FloatArray]]:
        """The loss, and the log-probs of each experience's targets; adds the gradient if `backward`."""
        ...

    def update(self, step: AdamStep) -> float:
        """Update the adapter; returns the norm of the gradient before clipping."""
        ...

    def write_state(self, folder: Path) -> None:
        """Write the adapter and its optimizer's state."""
        ...

    def load_state(self, folder: Path) -> None:
        """Restore a state. Raises CheckpointError for that of another adapter."""
        ...

    def reset_optimizer(self) -> None:
        """Start again with new moments."""
        ...

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class AdapterEngines(Protocol):
    """Opens the engines of a service."""

    @property
    def section(self) -> TrainingEngineConfig:
        """Section `trainer.engine` of the runs."""
        ...

    def open(self, run: Run) -> AdapterEngine:
        """The engine of a new adapter. Raises ModelError for a model that cannot be trained."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...


class LocalAdapterEngines:
    """Engines in this process, which share the weights of the base model."""

    section: TrainingEngineConfig = LocalEngineConfig()

    def __init__(self) -> None:
        self._frozen: dict[str, Tensor] = {}

    def open(self, run: Run) -> LocalAdapterEngine:
        """See `AdapterEngines`."""
        engine = LocalEngine(run, replace(PolicySpec.of(run), needs_reference=False))
        for module in {engine.policy.master, engine.policy.model}:
            for name, parameter in module.named_parameters():
                if not parameter.requires_grad:
                    parameter.data = self._frozen.setdefault(f"{name} {parameter.dtype}", parameter.data)
        return LocalAdapterEngine(engine)

    def close(self) -> None:
        """Nothing runs."""


class LocalAdapterEngine:
    """An adapter in this process."""

    is_lost = False

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self.policy = engine.policy

    def compute(
        self, batch: TrainingBatch, loss: NamedLoss, *, backward: bool
    ) -> tuple[float, list[FloatArray]]:
        """See `AdapterEngine`."""
        run = self._engine.forward_backward if backward else self._engine.evaluate_loss
        metrics = run(batch, cast(AnyLossSpec, loss))
        micro_batches, values = zip(*loss.logprobs, strict=True)
        return float(metrics["loss"]), unpack(micro_batches, values, batch.experiences)

    def update(self, step: AdamStep) -> float:
        """See `AdapterEngine`."""
        return step.apply(self.policy)

    def write_state(self, folder: Path) -> None:
        """See `AdapterEngine`."""
        self._engine.snapshot().begin_write(folder)()

    def load_state(self, folder: Path) -> None:
        """See `AdapterEngine`."""
        self._engine.load(folder)

    def reset_optimizer(self) -> None:
        """See `AdapterEngine`."""
        self.policy.reset_optimizer()

    def write_adapter(self, folder: Path) -> None:
        """See `AdapterEngine`."""
        self._engine.write_adapter(folder)

    def close(self) -> None:
        """Its memory is that of the object."""


class RankedAdapterEngines:
    """Engines on FSDP2 ranks, each of which holds a shard of the model for every adapter."""

    def __init__(self, ranks: int) -> None:
        """Raises PlacementError where this machine has fewer GPUs than ranks."""
        self.section: TrainingEngineConfig = Fsdp2EngineConfig(ranks=ranks)
        self._device = find_rank_device_type("auto", ranks, LOCAL)
        self._group: RankGroup | None = None
        self._numbers = itertools.count()

    def open(self, run: Run) -> RankedAdapterEngine:
        """See `AdapterEngines`. Starts the ranks, if there are none or an operation has failed on one."""
        assert isinstance(self.section, Fsdp2EngineConfig)
        if self._group is not None and self._group.has_failed:
            self.close()
        if self._group is None:
            self._group = RankGroup.of(self.section, self._device, LOCAL)
        return RankedAdapterEngine(self._group, run, f"adapter-{next(self._numbers)}")

    def close(self) -> None:
        """End the ranks."""
        if self._group is not None:
            self._group.has_failed = True
            self._group.close()
            self._group = None


class RankedAdapterEngine(RankedEngine):
    """An adapter on ranks, under a name of its own."""

    def __init__(self, group: RankGroup, run: Run, name: str) -> None:
        spec = replace(PolicySpec.of(run), needs_reference=False)
        group.run(BuildPolicy(spec, name))
        super().__init__(group, name, spec)

    @property
    def is_lost(self) -> bool:
        """Whether the ranks have ended, or will."""
        return self._group.has_failed

    def compute(
        self, batch: TrainingBatch, loss: NamedLoss, *, backward: bool
    ) -> tuple[float, list[FloatArray]]:
        """See `AdapterEngine`."""
        counts = GlobalCounts.of(batch.experiences)
        shares = self._shares(batch, self._plan(batch.experiences))
        passes = self._run_shares([LossPass(self._model, share, loss, counts, backward) for share in shares])
        self._require([each.error for each in passes])
        found: dict[int, FloatArray] = {}
        for each in passes:
            found |= each.logprobs
        metrics = sum_metrics(interleave([each.metrics for each in passes]))
        return float(metrics["loss"]), [found[number] for number in range(len(batch.experiences))]

    def update(self, step: AdamStep) -> float:
        """See `AdapterEngine`."""
        found = self._group.run(Update(self._model, step))[0]
        self._require([found if isinstance(found, str) else None])
        return float(found)

    def write_state(self, folder: Path) -> None:
        """See `AdapterEngine`."""
        self.snapshot().begin_write(folder)()

    def load_state(self, folder: Path) -> None:
        """See `AdapterEngine`."""
        self.load(folder)

    def reset_optimizer(self) -> None:
        """See `AdapterEngine`."""
        self._group.run(CallModel(self._model, "reset_optimizer"))

    def write_adapter(self, folder: Path) -> None:
        """See `AdapterEngine`."""
        with self._group.on_others(JoinWriteAdapter(self._model)):
            self._group.worker.model(self._model).write_adapter(folder)

    def close(self) -> None:
        """See `AdapterEngine`."""
        if not self.is_lost:
            self._group.run(Remove(self._model))

    def _require(self, errors: Sequence[str | None]) -> None:
        for error in errors:
            if error is not None:
                self._group.run(CallModel(self._model, "drop_gradient"))
                raise TrainingError(error)


@dataclass(frozen=True, slots=True)
class PassResult:
    """Result of a loss over the share of a rank."""

    metrics: Sequence[Mapping[str, float]]
    logprobs: Mapping[int, FloatArray]
    """[L] or [L, K] log-probs by the experience's number."""
    error: str | None = None
    """Message of the error for a loss that is not finite, which does not end the rank."""


@dataclass(frozen=True, slots=True)
class LossPass:
    """Compute a loss over the rank's share, and add its gradient."""

    model: str
    share: RankShare
    loss: NamedLoss
    counts: GlobalCounts
    backward: bool

    def run(self, worker: Rank) -> PassResult:
        policy: PolicyModel = worker.model(self.model)
        micro_batches = self.share.micro_batches(policy.device, policy.images)
        loss = replace(self.loss, logprobs=[])
        try:
            if self.backward:
                loss_fn = IdleSafeLoss(loss.build())
                metrics = [policy.forward_backward(micro_batches, loss_fn, self.counts, entropy=False)]
            else:
                metrics = [*policy.evaluate_loss(micro_batches, loss.build(), self.counts)]
        except TrainingError as error:
            return PassResult((), {}, str(error))
        built, values = zip(*loss.logprobs, strict=True) if loss.logprobs else ((), ())
        return PassResult([dict(each) for each in metrics], self.share.unpack(built, values))


@dataclass(frozen=True, slots=True)
class Update:
    """Update an adapter; the result is the norm, or the message of the error for one that is not finite."""

    model: str
    step: AdamStep

    def run(self, worker: Rank) -> float | str:
        try:
            return self.step.apply(worker.model(self.model))
        except TrainingError as error:
            return str(error)


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call a method without arguments."""

    model: str
    method: str

    def run(self, worker: Rank) -> None:
        call: Callable[[], Any] = getattr(worker.model(self.model), self.method)
        call()


@dataclass(frozen=True, slots=True)
class Remove:
    """Free an adapter with its model."""

    model: str

    def run(self, worker: Rank) -> None:
        worker.remove(self.model)
