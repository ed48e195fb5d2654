"""The training engine of one process, on the CPU or on one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn

from strop.algorithms import table
from strop.config.schema import Run
from strop.models.attention import can_share_prompts
from strop.models.load import load_model
from strop.models.logprobs import token_outputs
from strop.models.lora import add_lora, merged_weights, without_adapter
from strop.protocols import LossFn
from strop.training.device import find_device
from strop.training.learner import Learner
from strop.training.state import read_tensors, rng_tensors, set_rng, write_tensors
from strop.types import GlobalCounts, MicroBatch

RNG = "rng.safetensors"
"""What `save` writes beside the learner's files."""


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
        super().__init__(
            adapted or base,
            section,
            run.trainer.optimizer,
            max_grad_norm=run.trainer.max_grad_norm,
            keep_optimizer=run.checkpoint.optimizer,
            where=("model", "trainer"),
        )
        self.shares_prompts, self.why_not_shared = can_share_prompts(self.model)
        self._reference: nn.Module | None = None
        if table.needs_reference(run.algorithm) and section.lora is None:
            self._reference = load_model(section, device=self.device, trainable=False)

    def forward_backward(
        self, micro_batch: MicroBatch, loss_fn: LossFn, counts: GlobalCounts, *, entropy: bool
    ) -> Mapping[str, float]:
        """Add one micro-batch's gradient; returns the loss's metrics and `loss` itself.

        Raises TrainingError for a loss that is NaN or infinite, before any gradient of it is added.
        """
        self.train()
        outputs = token_outputs(self.model, micro_batch, entropy=entropy)
        return self.backward(loss_fn(micro_batch, outputs, counts), micro_batch, counts)

    @torch.no_grad()
    def logprobs(self, micro_batch: MicroBatch, *, reference: bool = False) -> Tensor:
        """[T] without gradient, by the current weights or by the reference's."""
        model, inside = self._as_reference() if reference else (self.model, nullcontext())
        model.eval()
        with inside:
            return token_outputs(model, micro_batch, entropy=False).logprobs

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The full weights, adapters merged, named as Hugging Face names them, in the compute type."""
        return merged_weights(self.model)

    def save(self, folder: Path) -> None:
        """Write the learner's state, and torch's random state, into an existing folder."""
        super().save(folder)
        write_tensors(folder / RNG, rng_tensors(self.device))

    def load(self, folder: Path) -> None:
        """Take back exactly what `save` wrote. Raises CheckpointError if it is of another model."""
        super().load(folder)
        set_rng(self.device, read_tensors(folder / RNG))

    def _as_reference(self) -> tuple[nn.Module, AbstractContextManager[None]]:
        if isinstance(self.model, PeftModel):
            return self.model, without_adapter(self.model)
        if self._reference is None:
            raise ValueError("this engine was made for an algorithm that wants no reference")
        return self._reference, nullcontext()
