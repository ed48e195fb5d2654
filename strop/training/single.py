"""The training engine of one process, on the CPU or on one GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn

from strop.algorithms import table
from strop.config.schema import Run
from strop.config.schema.trainer import SingleEngine as Section
from strop.errors import CheckpointError, PlacementError, TrainingError
from strop.models.attention import can_share_prompts
from strop.models.load import load_model
from strop.models.logprobs import token_outputs
from strop.models.lora import add_lora, merged_weights, without_adapter
from strop.protocols import LossFn
from strop.training.optim import build_optimizer
from strop.training.precision import ComputeCopy, trainable_parameters
from strop.training.state import (
    load_optimizer,
    optimizer_tensors,
    read_tensors,
    rng_tensors,
    set_rng,
    write_tensors,
)
from strop.types import GlobalCounts, MicroBatch

WEIGHTS, OPTIMIZER, RNG = "weights.safetensors", "optimizer.safetensors", "rng.safetensors"
"""The files of `save`."""


class SingleEngine:
    """Holds the model, its optimizer and, where the algorithm wants one, the reference.

    Raises ModelError for a model that cannot be used and PlacementError for a GPU that is not there.
    """

    def __init__(self, run: Run) -> None:
        self.device = find_device(run.trainer.engine)
        self._run = run
        torch.manual_seed(run.seed)
        section = run.model
        model = load_model(section, device=self.device)
        if section.lora is not None:
            model = add_lora(model, section.lora, getattr(torch, section.dtype))
        self.master: nn.Module = model
        """Whose parameters the optimizer moves, in `model.dtype`."""
        self._copy = None
        if section.compute_dtype not in (None, section.dtype):
            self._copy = ComputeCopy(model, getattr(torch, section.compute_dtype))
        self.model: nn.Module = self._copy.model if self._copy else model
        """Which computes, in `model.compute_dtype`; the master itself where that is the same."""
        self.shares_prompts, self.why_not_shared = can_share_prompts(self.model)
        self._parameters = trainable_parameters(self.master)
        self._optimizer = build_optimizer(run.trainer.optimizer, self._parameters.values())
        self._reference: nn.Module | None = None
        if table.needs_reference(run.algorithm) and section.lora is None:
            self._reference = load_model(section, device=self.device, trainable=False)

    def forward_backward(
        self, micro_batch: MicroBatch, loss_fn: LossFn, counts: GlobalCounts, *, entropy: bool
    ) -> Mapping[str, float]:
        """Add one micro-batch's gradient; returns the loss's metrics and `loss` itself.

        Raises TrainingError for a loss that is NaN or infinite, before any gradient of it is added.
        """
        self.model.train()
        outputs = token_outputs(self.model, micro_batch, entropy=entropy)
        result = loss_fn(micro_batch, outputs, counts)
        values = torch.stack([result.loss.detach(), *result.metrics.values()]).tolist()
        metrics = dict(zip(("loss", *result.metrics), values, strict=True))
        if not math.isfinite(metrics["loss"]):
            raise TrainingError(_not_finite(metrics, micro_batch))
        result.loss.backward()
        if self._copy:
            self._copy.collect_gradients()
        return metrics

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next `step`."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr

    def step(self) -> float:
        """Clip, update the weights, forget the gradient; returns the norm before clipping.

        Raises TrainingError for a norm that is NaN or infinite, before any weight changes.
        """
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if not torch.isfinite(norm):
            raise TrainingError(
                f"The norm of the gradient is {float(norm)}, so no update was made and the weights are as "
                "they were. The losses were finite: look for extreme log-probs or advantages, or lower the "
                "learning rate (trainer.optimizer.lr)."
            )
        if self._run.trainer.max_grad_norm is not None:
            limit = self._run.trainer.max_grad_norm
            nn.utils.clip_grads_with_norm_(self._parameters.values(), limit, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._copy:
            self._copy.refresh()
        return float(norm)

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
        """Write what is trained (with LoRA the adapter alone), the optimizer's state unless
        `checkpoint.optimizer` says no, and torch's random state into an existing folder."""
        write_tensors(folder / WEIGHTS, self._parameters)
        if self._run.checkpoint.optimizer:
            write_tensors(folder / OPTIMIZER, optimizer_tensors(self._optimizer, list(self._parameters)))
        write_tensors(folder / RNG, rng_tensors(self.device))

    def load(self, folder: Path) -> None:
        """Take back exactly what `save` wrote. Raises CheckpointError if it is of another model."""
        saved = read_tensors(folder / WEIGHTS)
        shapes = {name: p.shape for name, p in self._parameters.items()}
        if {name: t.shape for name, t in saved.items()} != shapes:
            raise CheckpointError(
                f"{folder / WEIGHTS} holds other weights than this run trains: `model` in the run file is "
                "not what it was when the checkpoint was written."
            )
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(saved[name])
        if self._run.checkpoint.optimizer:
            load_optimizer(self._optimizer, list(self._parameters), read_tensors(folder / OPTIMIZER))
        set_rng(self.device, read_tensors(folder / RNG))
        if self._copy:
            self._copy.refresh()

    def _as_reference(self) -> tuple[nn.Module, AbstractContextManager[None]]:
        if isinstance(self.model, PeftModel):
            return self.model, without_adapter(self.model)
        if self._reference is None:
            raise ValueError("this engine was made for an algorithm that wants no reference")
        return self._reference, nullcontext()


def find_device(section: Section) -> torch.device:
    """The device that `trainer.engine.device` means here."""
    available = torch.cuda.is_available()
    if section.device == "cuda" and not available:
        raise PlacementError(
            "trainer.engine.device is cuda, but torch sees no GPU here. Write `auto` or `cpu`, or "
            "run with --here."
        )
    return torch.device("cuda" if available and section.device != "cpu" else "cpu")


def _not_finite(metrics: Mapping[str, float], micro_batch: MicroBatch) -> str:
    experiences = [str(e) for e in micro_batch.experience if e >= 0]
    others = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name != "loss")
    return (
        f"The loss of a micro-batch is {metrics['loss']}, so no update was made and the weights are as "
        f"they were. It held the batch's experiences {', '.join(experiences)}; its other metrics were: "
        f"{others or 'none'}. Look for extreme rewards or log-probs in them, or lower the learning "
        "rate (trainer.optimizer.lr)."
    )
