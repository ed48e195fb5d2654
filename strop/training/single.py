"""The training engine of one process: of the only one, or of one rank among several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor
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
from strop.training.learner import Learner, summed
from strop.training.place import Inside, Place, here
from strop.training.snapshot import Snapshot
from strop.training.state import read_tensors, rng_tensors, set_rng
from strop.types import GlobalCounts, MicroBatch

RNG = "rng.safetensors"
"""What a checkpoint holds beside the learner's files."""


class SingleEngine(Learner):
    """Holds the model, its optimizer and, where the algorithm wants one, the reference; whole, or a part.

    Raises ModelError for a model that cannot be used.
    """

    def __init__(self, run: Run, place: Place | None = None) -> None:
        """`place` is this process's device where none is given."""
        place = place or here(run)
        self.device = place.device
        torch.manual_seed(run.seed)
        section = run.model
        base = load_model(section, device=place.loads_to)
        adapted = section.lora and add_lora(base, section.lora, getattr(torch, section.dtype))
        model = adapted or base
        placed = place.put(model, model, section)
        self._inside = placed.inside
        super().__init__(
            model,
            run.trainer.optimizer,
            copy=placed.copy,
            max_grad_norm=run.trainer.max_grad_norm,
            checkpoint=run.checkpoint,
            where=("model", "trainer"),
        )
        self.description = f"on {self.device}"
        self.shares_prompts, self.why_not_shared = can_share_prompts(self.model)
        self._reference: Inside | None = None
        if table.needs_reference(run.algorithm) and section.lora is None:
            frozen = load_model(section, device=place.loads_to, trainable=False)
            self._reference = place.put_frozen(frozen, section)

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
            outputs = self._inside(token_outputs, micro_batch, entropy=entropy, reference=reference)
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
        self.model.eval()
        inside, adapters = self._as_reference() if reference else (self._inside, nullcontext())
        found = []
        with adapters:
            for micro_batch in micro_batches:
                found.append(inside(token_outputs, micro_batch, entropy=False).logprobs)
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
            outputs = self._inside(token_outputs, micro_batch, entropy=False, reference=reference)
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
        learning = self.model.training
        self.model.eval()
        inside, adapters = self._as_reference()
        with adapters:
            states = inside(reference_states, micro_batch)
        self.model.train(learning)
        return states

    def _as_reference(self) -> tuple[Inside, AbstractContextManager[None]]:
        """The reference, and what to do round it: with LoRA it is the model with its adapters off."""
        if isinstance(self.model, PeftModel):
            return self._inside, without_adapter(self.model)
        if self._reference is None:
            raise ValueError("this engine was made for an algorithm that wants no reference")
        return self._reference, nullcontext()
