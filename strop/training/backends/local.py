"""The local backend: training engines in one process, on the CPU or one GPU, or with workers on the CPU, which are in
`strop.training.backends.local_workers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from strop.algorithms.losses.value_losses import ValueLoss
from strop.algorithms.registry import AnyLossSpec
from strop.config.local_workers import local_workers
from strop.config.schema import Run
from strop.config.schema.policy_gradient import CriticConfig, ProcessRewardConfig
from strop.config.schema.trainer import LocalEngineConfig
from strop.data.packing import build_micro_batch, pack, plan_micro_batches, unpack
from strop.errors import PlacementError
from strop.protocols import CriticEngine, EngineSnapshot, SharedWeights, TokenQuantity, TrainingEngine
from strop.training.device import find_device
from strop.training.optimized_model import sum_metrics
from strop.training.parallel.parallelize import single_device
from strop.training.specs import CriticSpec, PolicySpec
from strop.training.trained_models import CriticModel, PolicyModel
from strop.types import Experience, FloatArray, GlobalCounts, MicroBatch, TrainingBatch
from strop.workers.start import LOCAL, RankPlacement

if TYPE_CHECKING:
    from strop.training.backends.local_workers import LocalWorkersBackend


class LocalEngine:
    """A language model's training engine in this process. Raises ModelError for a model that cannot be trained."""

    def __init__(self, run: Run, spec: PolicySpec | None = None) -> None:
        """`spec` is the model's; that of the run's policy if None."""
        spec = spec or PolicySpec.of(run)
        self.policy = PolicyModel(spec, single_device(run.trainer.engine.device))
        self._microbatch = spec.microbatch
        self.supports_shared_prompts = self.policy.supports_shared_prompts
        self.shared_prompts_obstacle = self.policy.shared_prompts_obstacle
        self.description = f"on {self.policy.device}"

    def forward_backward(
        self, batch: TrainingBatch, loss: AnyLossSpec, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """Add the gradient of the loss over a batch; returns the loss's metrics and `loss` itself."""
        counts = counts or GlobalCounts.of(batch.experiences)
        expert_load = None
        if self.policy.needs_expert_load:
            expert_load = self.policy.expert_counts(self._micro_batches(batch)) / counts.all_tokens
        return self.policy.forward_backward(
            self._micro_batches(batch),
            loss.build(),
            counts,
            entropy=loss.needs_entropy,
            divergence=loss.needs_divergence,
            teacher_divergence=loss.teacher_divergence,
            expert_load=expert_load,
        )

    def evaluate_loss(
        self, batch: TrainingBatch, loss: AnyLossSpec, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """The loss over a batch and its metrics, without a gradient."""
        counts = counts or GlobalCounts.of(batch.experiences)
        return sum_metrics(self.policy.evaluate_loss(self._micro_batches(batch), loss.build(), counts))

    def token_values(
        self,
        experiences: Sequence[Experience],
        quantity: TokenQuantity,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> list[FloatArray]:
        """[L] of each experience: a quantity at each of its targets; `check` is called between micro-batches."""
        micro_batches = list(self._micro_batches(TrainingBatch(experiences)))
        values = self.policy.token_values(micro_batches, quantity, check=check)
        return unpack(micro_batches, values, experiences)

    def sync_reference(self, policy_weight: float) -> None:
        """Move the weights of the reference model towards the policy's."""
        self.policy.sync_reference(policy_weight)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update."""
        self.policy.set_lr(lr)

    def set_weight_decay(self, weight_decay: float) -> None:
        """Set the weight decay of the next update."""
        self.policy.set_weight_decay(weight_decay)

    def step(self) -> float:
        """Clip the gradient, update the weights, clear the gradient; returns the norm before clipping."""
        return self.policy.step()

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights, adapters merged, with Hugging Face names, in the compute dtype."""
        return self.policy.iter_weights()

    def shared_weights(self) -> SharedWeights:
        """Handle of the weights; an inference engine on the same device reads them in place."""
        return self.policy.shared_weights()

    def export(self, folder: Path, add_files: Callable[[Path], object] = lambda folder: None) -> None:
        """Write a Hugging Face folder. Raises ModelError where it cannot be written."""
        self.policy.export(folder, add_files)

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format. Raises ModelError for a model without one."""
        self.policy.write_adapter(folder)

    def snapshot(self) -> EngineSnapshot:
        """Weights, optimizer state and random states, for a checkpoint."""
        return self.policy.snapshot()

    def load(self, folder: Path) -> None:
        """Restore the state that a snapshot wrote. Raises CheckpointError for another model's state."""
        self.policy.load(folder)

    def _micro_batches(self, batch: TrainingBatch) -> Iterator[MicroBatch]:
        plans = plan_micro_batches(
            batch.experiences, self._microbatch, share_prompts=self.supports_shared_prompts
        )
        processor = self.policy.images.processor_for(batch.experiences)
        return (build_micro_batch(plan, batch, self.policy.device, processor) for plan in plans)


class LocalCriticEngine:
    """A critic's training engine in this process. Raises ModelError for a model that cannot be trained."""

    def __init__(self, run: Run, critic: CriticConfig) -> None:
        spec = CriticSpec.of(run, critic)
        self.critic = CriticModel(spec, single_device(run.trainer.engine.device))
        self._microbatch = spec.microbatch

    def forward_backward(
        self, batch: TrainingBatch, loss: ValueLoss, counts: GlobalCounts | None = None
    ) -> Mapping[str, float]:
        """Add the gradient of the loss over a batch; returns the loss's metrics and `loss` itself."""
        counts = counts or GlobalCounts.of(batch.experiences)
        return self.critic.forward_backward(self._pack(batch), loss, counts)

    def values(self, experiences: Sequence[Experience]) -> list[FloatArray]:
        """[L] of each experience: value of the state before each target, under the current weights."""
        micro_batches = self._pack(TrainingBatch(experiences))
        return unpack(micro_batches, self.critic.values(micro_batches), experiences)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update."""
        self.critic.set_lr(lr)

    def step(self) -> float:
        """Clip the gradient, update the weights, clear the gradient; returns the norm before clipping."""
        return self.critic.step()

    def snapshot(self) -> EngineSnapshot:
        """Weights and optimizer state, for a checkpoint."""
        return self.critic.snapshot()

    def load(self, folder: Path) -> None:
        """Restore the state that a snapshot wrote. Raises CheckpointError for another model's state."""
        self.critic.load(folder)

    def _pack(self, batch: TrainingBatch) -> list[MicroBatch]:
        return pack(
            batch,
            self._microbatch,
            share_prompts=self.critic.supports_shared_prompts,
            device=self.critic.device,
            image_processor=self.critic.images.processor_for(batch.experiences),
        )


class LocalBackend:
    """Builds the engines of one run in this process."""

    def __init__(self, run: Run, reason: str = "") -> None:
        """`reason` says why there is one process where more could be used; empty otherwise."""
        self._run, self._reason = run, reason

    def policy(self) -> TrainingEngine:
        """The policy's engine."""
        engine = LocalEngine(self._run)
        if self._reason:
            engine.description += f", in one process: {self._reason}"
        return engine

    def critic(self, section: CriticConfig) -> CriticEngine:
        """The critic's engine."""
        return LocalCriticEngine(self._run, section)

    def process_reward(self, section: ProcessRewardConfig) -> TrainingEngine:
        """The engine of PRIME's process reward model, with its reference."""
        return LocalEngine(self._run, PolicySpec.of_process_reward(self._run, section))


@contextmanager
def open_local(run: Run, placement: RankPlacement = LOCAL) -> Iterator[LocalBackend | LocalWorkersBackend]:
    """The backend of `trainer.engine.type: local`: this process, or workers of this machine, whatever `placement` is.

    Raises PlacementError where there is no GPU and one is required, or workers are set for one.
    """
    section = run.trainer.engine
    assert isinstance(section, LocalEngineConfig)
    device = find_device(section.device)
    if device.type != "cpu":
        if section.workers not in ("auto", 1):
            raise PlacementError(
                f"trainer.engine.workers is {section.workers}, and they share the CPU's memory, but the device is "
                f"{device}. Write workers: 1, or device: cpu."
            )
        yield LocalBackend(run)
    elif (workers := local_workers(run)).count == 1:
        yield LocalBackend(run, workers.reason)
    else:
        from strop.training.backends.local_workers import (
            open_local_workers,  # ranks, which one process does not need
        )

        with open_local_workers(run, workers) as backend:
            yield backend
