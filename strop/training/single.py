"""The training engine of one process, on the CPU or on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from strop.algorithms import table
from strop.config.schema import Run
from strop.models.attention import base_model, can_share_prompts
from strop.models.export import export_model
from strop.models.fuse import fuse_storage
from strop.models.head import ReferenceStates
from strop.models.load import load_model
from strop.models.logprobs import reference_states, token_outputs
from strop.models.lora import add_lora, merged_weights, without_adapter
from strop.protocols import LossFn
from strop.training.device import find_device
from strop.training.learner import Learner, summed
from strop.training.precision import compute_copy
from strop.training.snapshot import Snapshot
from strop.training.state import read_tensors, rng_tensors, set_rng
from strop.types import GlobalCounts, MicroBatch

RNG = "rng.safetensors"
"""What a checkpoint holds beside the learner's files."""


class SingleEngine(Learner):
    """Holds the model, its optimizer and, where the algorithm wants one, the reference.

    Raises ModelError for a model that cannot be used and PlacementError for a GPU that is not there.
    """

    def __init__(self, run: Run) -> None:
        self.device = find_device(run.trainer.engine.device)
        torch.manual_seed(run.seed)
        section = run.model
        base = load_model(section, device=self.device)
        adapted = section.lora and add_lora(base, section.lora, getattr(torch, section.dtype))
        model = adapted or base
        super().__init__(
            model,
            run.trainer.optimizer,
            copy=compute_copy(model, section),
            max_grad_norm=run.trainer.max_grad_norm,
            checkpoint=run.checkpoint,
            where=("model", "trainer"),
        )
        self.description = f"on {self.device}"
        self.shares_prompts, self.why_not_shared = can_share_prompts(self.model)
        self._reference: nn.Module | None = None
        if table.needs_reference(run.algorithm) and section.lora is None:
            self._reference = load_model(section, device=self.device, trainable=False)

    def forward_backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        counts: GlobalCounts,
        *,
        entropy: bool,
        divergence: bool = False,
    ) -> Mapping[str, float]:
        """Add the micro-batches' gradients; returns the sums of the loss's metrics, and of `loss` itself.

        Raises TrainingError for a loss that is NaN or infinite, before any gradient of it is added.
        """
        self.train()
        rows = []
        for micro_batch in micro_batches:
            reference = self._reference_states(micro_batch) if divergence else None
            outputs = token_outputs(self.model, micro_batch, entropy=entropy, reference=reference)
            rows.append(self.backward(loss_fn(micro_batch, outputs, counts), micro_batch, counts))
        return summed(rows)

    @torch.no_grad()
    def logprobs(
        self,
        micro_batches: Sequence[MicroBatch],
        *,
        reference: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> list[Tensor]:
        """[T] of each, without gradient, by the current weights or by the reference's; `check` is called
        between them, and may raise."""
        model, inside = self._as_reference() if reference else (self.model, nullcontext())
        model.eval()
        found = []
        with inside:
            for micro_batch in micro_batches:
                found.append(token_outputs(model, micro_batch, entropy=False).logprobs)
                check()
        return found

    @property
    def computing(self) -> PreTrainedModel:
        """The Hugging Face model that computes."""
        return base_model(self.model)

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of the model's arithmetic, and of `iter_weights`."""
        return self.computing.dtype

    def lay_out_for_sampling(self) -> None:
        """Lay the weights out as the native sampler wants them, which then shares them."""
        fuse_storage(self.computing)

    @torch.no_grad()
    def divergences(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        """[T] of each, KL(current weights || reference) over the whole vocabulary, without gradient."""
        self.model.eval()
        found = []
        for micro_batch in micro_batches:
            reference = self._reference_states(micro_batch)
            outputs = token_outputs(self.model, micro_batch, entropy=False, reference=reference)
            assert outputs.divergence is not None
            found.append(outputs.divergence)
        return found

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The full weights, adapters merged, named as Hugging Face names them, in the compute type."""
        return merged_weights(self.model)

    def export(self, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write a Hugging Face folder. Raises ModelError where it cannot be written."""
        export_model(self.master, tokenizer, folder)

    def snapshot(self) -> Snapshot:
        """The learner's state, and torch's random state."""
        learned = super().snapshot()
        return replace(learned, tensors={**learned.tensors, RNG: rng_tensors(self.device)})

    def load(self, folder: Path) -> None:
        """Take back exactly what a snapshot wrote. Raises CheckpointError if it is of another model."""
        super().load(folder)
        set_rng(self.device, read_tensors(folder / RNG))

    def _reference_states(self, micro_batch: MicroBatch) -> ReferenceStates:
        model, inside = self._as_reference()
        learning = model.training
        with inside:
            states = reference_states(model.eval(), micro_batch)
        model.train(learning)
        return states

    def _as_reference(self) -> tuple[nn.Module, AbstractContextManager[None]]:
        if isinstance(self.model, PeftModel):
            return self.model, without_adapter(self.model)
        if self._reference is None:
            raise ValueError("this engine was made for an algorithm that wants no reference")
        return self._reference, nullcontext()
