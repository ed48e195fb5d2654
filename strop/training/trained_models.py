"""Trained models on one rank: the policy with its reference model and teachers, or a reward model; and the critic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import assert_never

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.algorithms.losses.preference_losses import sync_reference
from strop.algorithms.losses.router_losses import RouterLoss, add_losses, expert_counts
from strop.config.schema.distillation import DistillationConfig, DivergenceConfig
from strop.errors import ModelError
from strop.models.chunked_head import Comparison, FrozenStates
from strop.models.family_traits import check_rope_limit
from strop.models.formats.huggingface import export_model, join_write_adapter, write_serving_adapter
from strop.models.logprobs import (
    expected_entropy_effects,
    frozen_states,
    sampled_logprobs,
    squared_probabilities,
    token_outputs,
)
from strop.models.lora import low_rank_updates, merged_weights, without_adapter
from strop.models.packed_attention.forward import base_model, can_share_prompts
from strop.models.routers import experts_per_token, router_logits
from strop.models.shared_weights import fuse_storage, named_weights
from strop.models.value_head import classifier_outputs
from strop.models.value_model import token_values
from strop.models.vision.model_images import ModelImages
from strop.protocols import LossFn, SharedWeights, TokenQuantity, UnmergedWeights, ValueLossFn
from strop.training.checkpoints.file_writer import REFERENCE_FILE, RNG_FILE
from strop.training.checkpoints.tensors import (
    LocalSnapshot,
    ShardedTensors,
    get_rng_state,
    read_tensors,
    set_rng_state,
)
from strop.training.optimized_model import OptimizedModel, mark_last
from strop.training.parallel.parallelize import DirectCall, ModelCall, Parallelizer
from strop.training.specs import CriticSpec, PolicySpec
from strop.transfers import Positions, to_device
from strop.types import GlobalCounts, IndexArray, MicroBatch, TokenOutputs


class PolicyModel(OptimizedModel):
    """The policy, its optimizer, its reference model and its teachers; whole, or one rank's shards. Under algorithm
    reward_model a classifier, which has scores in place of log-probs.

    Raises ModelError for a model that cannot be loaded or trained.
    """

    def __init__(self, spec: PolicySpec, parallelizer: Parallelizer) -> None:
        self.device = parallelizer.device
        self.images = ModelImages(spec.model, spec.images)
        """Image processor of the model."""
        self._section, self._export = spec.model, spec.export
        torch.manual_seed(spec.seed)
        loaded = parallelizer.load_policy(spec.model, spec.head)
        check_rope_limit(base_model(loaded.model).config, spec.max_sequence_tokens)
        self._call = loaded.call
        self._is_classifier = spec.head is not None
        super().__init__(
            loaded.model,
            spec.optimizer,
            compute_copy=loaded.compute_copy,
            before_backward=loaded.before_backward,
            sharded_optimizer=loaded.sharded_optimizer,
            max_grad_norm=spec.max_grad_norm,
            checkpoint=spec.checkpoint,
            model_key="model",
            trainer_key="trainer",
        )
        self.shared_tensors = loaded.shared
        """The parameters in memory that other processes map; None for this process's own."""
        self.note = loaded.note
        """Remark on how the model was loaded; empty for none."""
        self.supports_shared_prompts, self.shared_prompts_obstacle = can_share_prompts(self.model)
        self._router_loss: RouterLoss | None = None
        if spec.router_loss is not None:
            self._router_loss = RouterLoss(spec.router_loss, experts_per_token(base_model(self.model)))
        self._reference: ModelCall | None = None
        if spec.needs_reference and spec.model.lora is None:
            self._reference = parallelizer.load_reference(spec.model)
        self._synced_reference: nn.Module | None = None
        if spec.syncs_reference:
            assert isinstance(self._reference, DirectCall)  # as the configuration's checks require
            self._synced_reference = self._reference.model
        self._teachers: Teachers | None = None
        if spec.distillation is not None:
            self._teachers = Teachers(
                spec.distillation, parallelizer, max_sequence_tokens=spec.max_sequence_tokens
            )
            obstacle = self._teachers.shared_prompts_obstacle
            self.supports_shared_prompts &= not obstacle
            self.shared_prompts_obstacle = self.shared_prompts_obstacle or obstacle

    def forward_backward(
        self,
        micro_batches: Iterable[MicroBatch],
        loss_fn: LossFn,
        counts: GlobalCounts,
        *,
        entropy: bool,
        divergence: bool = False,
        teacher_divergence: DivergenceConfig | None = None,
        expert_load: Tensor | None = None,
    ) -> Mapping[str, float]:
        """Add the micro-batches' gradients; returns the sums of the loss's metrics, and of `loss` itself.

        `entropy`, `divergence` and `teacher_divergence` request these fields of `TokenOutputs`; `expert_load`
        [layers, E] is that of the whole update, where `needs_expert_load` is True. Raises TrainingError for a loss
        that is NaN or infinite, and drops the gradient.
        """
        self.train()
        pending = []
        for micro_batch, is_last in mark_last(micro_batches):
            reference = self._reference_states(micro_batch) if divergence else None
            teacher = None
            if teacher_divergence is not None:
                teacher = Comparison(self._require_teachers().states(micro_batch), teacher_divergence)
            routed = self._router_loss is not None
            if self._is_classifier:
                outputs = self._call(classifier_outputs, micro_batch, router_logits=routed)
            else:
                outputs = self._call(
                    token_outputs,
                    micro_batch,
                    entropy=entropy,
                    reference=reference,
                    teacher=teacher,
                    router_logits=routed,
                )
            result = loss_fn(micro_batch, outputs, counts)
            if self._router_loss is not None:
                weights = to_device(micro_batch.sequence_counts(), self.device)
                routers = self._router_loss(outputs.router_logits, weights, expert_load, counts)
                result = add_losses(result, routers)
            pending.append(self.backward(result, micro_batch, counts, is_last=is_last))
        return self.read_metrics(pending)

    @property
    def needs_expert_load(self) -> bool:
        """Whether `forward_backward` needs the load of the experts over the whole update."""
        return self._router_loss is not None and self._router_loss.config.balance_coef > 0

    @torch.no_grad()
    def expert_counts(self, micro_batches: Iterable[MicroBatch]) -> Tensor:
        """[layers, E] float64: number of tokens of all micro-batches that each router gives to each expert."""
        assert self._router_loss is not None
        self.model.eval()
        counts = [
            expert_counts(
                self._call(router_logits, micro_batch),
                to_device(micro_batch.sequence_counts(), self.device),
                self._router_loss.top_k,
            )
            for micro_batch in micro_batches
        ]
        return torch.stack(counts).sum(0)

    @torch.no_grad()
    def evaluate_loss(
        self, micro_batches: Iterable[MicroBatch], loss_fn: LossFn, counts: GlobalCounts
    ) -> list[dict[str, float]]:
        """The loss's metrics and `loss` itself for each micro-batch that has targets, without a gradient."""
        rows = []
        for micro_batch in micro_batches:
            (logprobs,) = self.token_values([micro_batch], "logprobs")
            if len(micro_batch.targets):
                result = loss_fn(micro_batch, TokenOutputs(logprobs), counts)
                values = {"loss": result.loss, **result.metrics}
                rows.append({name: float(value) for name, value in values.items()})
        return rows

    @torch.no_grad()
    def token_values(self, micro_batches: Iterable[MicroBatch], quantity: TokenQuantity) -> list[Tensor]:
        """[T] of each micro-batch: a quantity at each target."""
        self.model.eval()
        return [self._token_values(micro_batch, quantity) for micro_batch in micro_batches]

    def _token_values(self, micro_batch: MicroBatch, quantity: TokenQuantity) -> Tensor:
        values: Tensor | None
        match quantity:
            case "logprobs":
                values = self._call(token_outputs, micro_batch, entropy=False).logprobs
            case "teacher_logprobs":
                values = self._require_teachers().logprobs(micro_batch)
            case "reference_logprobs":
                call, adapter_state = self._as_reference()
                with adapter_state:
                    values = call(token_outputs, micro_batch, entropy=False).logprobs
            case "scores":
                values = self._call(classifier_outputs, micro_batch).scores
            case "reference_kl":
                reference = self._reference_states(micro_batch)
                values = self._call(token_outputs, micro_batch, entropy=False, reference=reference).divergence
            case "entropies":
                values = self._call(token_outputs, micro_batch, entropy=True).entropy
            case "squared_probabilities":
                values = self._call(squared_probabilities, micro_batch)
            case "expected_entropy_effects":
                values = self._call(expected_entropy_effects, micro_batch)
            case _:
                assert_never(quantity)
        assert values is not None
        return values

    def sync_reference(self, policy_weight: float) -> None:
        """Move the reference's weights towards the policy's; see `strop.algorithms.losses.preference_losses`."""
        assert self._synced_reference is not None
        self._show_average()
        sync_reference(self._synced_reference, self.master, policy_weight)

    @property
    def compute_model(self) -> PreTrainedModel:
        """The Hugging Face model that runs forward passes."""
        return base_model(self.model)

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights, adapters merged, with Hugging Face names, in the compute dtype.

        Where the model is sharded, all ranks iterate together.
        """
        return merged_weights(self.model)

    def shared_weights(self) -> SharedWeights:
        """Handle of the weights for an inference engine in this process, with fused projections."""
        base = self.compute_model
        fuse_storage(base)
        adapter = low_rank_updates(self.model)
        return SharedWeights(
            config=base.config,
            generation_config=base.generation_config,
            device=base.device,
            dtype=base.dtype,
            tensors=self.iter_weights,
            image_processor=lambda: self.images.processor,
            unmerged=None if adapter is None else UnmergedWeights(partial(named_weights, base), adapter),
        )

    def export(self, folder: Path, add_files: Callable[[Path], object] = lambda folder: None) -> None:
        """Write a Hugging Face folder. Raises ModelError where it cannot be written."""

        def add_all_files(partial: Path) -> None:
            add_files(partial)
            self.images.copy_files(partial)

        export_model(self.master, add_all_files, folder, base=self._section, dtype=self._export.dtype)

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format for an inference engine. Raises ModelError for a model without one."""
        write_serving_adapter(self._adapted_model(), folder)

    def join_write_adapter(self) -> None:
        """Take part in another rank's `write_adapter`, without writing."""
        join_write_adapter(self._adapted_model())

    def _adapted_model(self) -> PeftModel:
        if not isinstance(self.master, PeftModel):
            raise ModelError("model.lora is not set, so there is no adapter to write")
        return self.master

    def snapshot(self) -> LocalSnapshot:
        """Trained weights, the optimizer's state, torch's random states, and a reference that changes."""
        state = super().snapshot()
        tensors: dict[str, Mapping[str, Tensor]] = {**state.tensors, RNG_FILE: get_rng_state(self.device)}
        if self._synced_reference is not None:
            tensors[REFERENCE_FILE] = dict(self._synced_reference.named_parameters())
        return replace(state, tensors=tensors)

    def load(self, folder: Path, rng_file: str = RNG_FILE) -> None:
        """Restore the state that a snapshot wrote. Raises CheckpointError for another model's state."""
        super().load(folder)
        if self._synced_reference is not None:
            saved = ShardedTensors(folder, REFERENCE_FILE)
            with torch.no_grad():
                for name, weight in self._synced_reference.named_parameters():
                    weight.copy_(saved.read_like(name, weight))
        set_rng_state(self.device, read_tensors(folder / rng_file))

    def _require_teachers(self) -> Teachers:
        if self._teachers is None:
            raise ValueError("this engine was built for an algorithm without a teacher")
        return self._teachers

    def _reference_states(self, micro_batch: MicroBatch) -> FrozenStates:
        training = self.model.training
        self.model.eval()
        call, adapter_state = self._as_reference()
        with adapter_state:
            states = call(frozen_states, micro_batch)
        self.model.train(training)
        return states

    def _as_reference(self) -> tuple[ModelCall, AbstractContextManager[None]]:
        """The reference model's call, and the context of the call: with LoRA, the adapter is disabled in it."""
        if isinstance(self.model, PeftModel):
            return self._call, without_adapter(self.model)
        if self._reference is None:
            raise ValueError("this engine was built for an algorithm without a reference model")
        return self._reference, nullcontext()


@dataclass(frozen=True, slots=True)
class RoutedStates:
    """A micro-batch's hidden states from several teachers, each for its own positions."""

    states: tuple[FrozenStates, ...]
    teacher: IndexArray
    """[T] Number of the teacher of each position of the hidden states, on the host; -1 where none is needed."""

    def logprobs(self, rows: Positions, temperature: Tensor) -> Tensor:
        """[n, V] float32 Log-probs of the next token at each position, by its teacher.

        V is the smallest of the teachers' vocabularies; the tokens of one tokenizer are in each of them.
        """
        numbers, parts = self.teacher[rows.on_host], []
        for number, states in enumerate(self.states):
            chosen = Positions.of(np.flatnonzero(numbers == number), temperature.device)
            own = Positions(rows.on_host[chosen.on_host], rows.on_device[chosen.on_device])
            parts.append((chosen, states.logprobs(own, temperature[chosen.on_device])))
        result = temperature.new_zeros(len(rows), min(each.shape[1] for _, each in parts))
        for chosen, each in parts:
            result[chosen.on_device] = each[:, : result.shape[1]]
        return result


class Teachers:
    """Frozen models, whole or this rank's shards. Every rank runs every teacher on each of its micro-batches.

    Raises ModelError for a model that cannot be used.
    """

    def __init__(
        self, section: DistillationConfig, parallelizer: Parallelizer, *, max_sequence_tokens: int
    ) -> None:
        self._section = section
        self._group = parallelizer.sequence_group
        self._calls: list[ModelCall] = []
        self.shared_prompts_obstacle = ""
        """Reason why a micro-batch must not hold a shared prompt; empty if it may."""
        for number, teacher in enumerate(section.teachers):
            try:
                call = parallelizer.load_reference(teacher.model)
                call(lambda model: check_rope_limit(base_model(model).config, max_sequence_tokens))
            except ModelError as error:
                raise ModelError(f"algorithm.distillation.teachers.{number}: {error}") from error
            supported, obstacle = call(can_share_prompts)
            if not supported:
                self.shared_prompts_obstacle = f"of its teacher {teacher.path}: {obstacle}"
            self._calls.append(call)

    def states(self, micro_batch: MicroBatch) -> RoutedStates:
        """Hidden states of a micro-batch, from which log-probs over the vocabulary are computed in chunks."""
        temperature = self._section.temperature
        return RoutedStates(
            tuple(call(frozen_states, micro_batch, temperature=temperature) for call in self._calls),
            self._numbers(micro_batch),
        )

    @torch.no_grad()
    def logprobs(self, micro_batch: MicroBatch) -> Tensor:
        """[T] log-probs of a micro-batch's targets."""
        return sampled_logprobs(self.states(micro_batch), micro_batch, self._group)

    def _numbers(self, micro_batch: MicroBatch) -> IndexArray:
        """[T] Number of each position's teacher; with sequence parallelism of this rank's positions."""
        numbers = [self._section.teacher_of(source) for source in micro_batch.source]
        by_segment = np.array([-1 if number is None else number for number in numbers])
        of_tokens: IndexArray = by_segment[micro_batch.segment_numbers()]
        return of_tokens if self._group is None else self._group.share(torch.from_numpy(of_tokens)).numpy()


class CriticModel(OptimizedModel):
    """A value model and its optimizer. Raises ModelError for a model that cannot be loaded or trained.

    Building it leaves torch's random state, which the policy's checkpoint holds, as it was.
    """

    def __init__(self, spec: CriticSpec, parallelizer: Parallelizer) -> None:
        self.device = parallelizer.device
        self.images = ModelImages(spec.model, spec.images)
        """Image processor of the model."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(spec.seed)
            try:
                loaded = parallelizer.load_critic(spec.model, spec.head)
            except ModelError as error:
                raise ModelError(f"algorithm.critic: {error}") from error
        self._call = loaded.call
        super().__init__(
            loaded.model,
            spec.optimizer,
            compute_copy=loaded.compute_copy,
            before_backward=loaded.before_backward,
            sharded_optimizer=loaded.sharded_optimizer,
            max_grad_norm=spec.max_grad_norm,
            checkpoint=spec.checkpoint,
            model_key=spec.model_key,
            trainer_key="algorithm.critic",
        )
        self.supports_shared_prompts, _ = can_share_prompts(loaded.decoder)

    def forward_backward(
        self, micro_batches: Iterable[MicroBatch], loss_fn: ValueLossFn, counts: GlobalCounts
    ) -> Mapping[str, float]:
        """Add the micro-batches' gradients; returns the sums of the loss's metrics, and of `loss` itself.

        Raises TrainingError for a loss that is NaN or infinite, and drops the gradient.
        """
        self.train()
        pending = []
        for micro_batch, is_last in mark_last(micro_batches):
            values = self._call(token_values, micro_batch)
            result = loss_fn(micro_batch, values, counts)
            pending.append(self.backward(result, micro_batch, counts, is_last=is_last))
        return self.read_metrics(pending)

    @torch.no_grad()
    def values(self, micro_batches: Iterable[MicroBatch]) -> list[Tensor]:
        """[T] values of each micro-batch, under the current weights."""
        self.model.eval()
        return [self._call(token_values, micro_batch) for micro_batch in micro_batches]
