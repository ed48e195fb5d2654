"""What learns in one process: a model, the optimizer that moves it, and its state on disk.

A policy and a critic differ in what they compute, and in nothing that is here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from strop.config.schema.optimizer import Optimizer, ScheduleFreeSgd
from strop.config.schema.run import Checkpoint
from strop.errors import CheckpointError, TrainingError
from strop.models.shards import whole
from strop.training.fused import FusedBackward, require_whole
from strop.training.optim import ScheduleFree, build_optimizer
from strop.training.optim_state import (
    NUMBERS,
    TENSORS,
    optimizer_numbers,
    optimizer_tensors,
    read_optimizer,
)
from strop.training.parts import StoredTensors
from strop.training.precision import ComputeCopy, trainable_parameters
from strop.training.snapshot import Snapshot
from strop.types import GlobalCounts, LossOutput, MicroBatch

WEIGHTS = "weights.safetensors"
"""What a checkpoint holds beside the optimizer's files."""


class Learner:
    """A model with its optimizer, in one precision or two."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        copy: ComputeCopy | None,
        max_grad_norm: float | None,
        checkpoint: Checkpoint,
        where: tuple[str, str],
    ) -> None:
        """`copy` computes in the model's stead; `where` are the run file's keys of the model and of what
        trains it, for messages."""
        self.master = model
        """Whose parameters the optimizer moves, in `dtype`."""
        self._copy = copy
        self.model: nn.Module = copy.model if copy else model
        """Which computes, in `compute_dtype`; the master itself where that is the same."""
        self._parameters = trainable_parameters(self.master)
        self._optimizer = build_optimizer(optimizer, self._parameters)
        self._averaging: ScheduleFree | None = None
        if isinstance(optimizer, ScheduleFreeSgd):
            self._averaging = cast(ScheduleFree, self._optimizer)
        self._fused = None
        if optimizer.fused_backward:
            computing = trainable_parameters(self.model)
            self._fused = FusedBackward(self._optimizer, self._parameters, computing)
        self._max_grad_norm = max_grad_norm
        self._checkpoint = checkpoint
        self._model_key, self._trainer_key = where

    def train(self) -> None:
        """Get ready for a forward pass that is learned from. Schedule-free takes its gradients at another
        point than the average that is sampled from and saved."""
        self.model.train()
        if self._averaging and not self._averaging.param_groups[0]["train_mode"]:
            self._averaging.train()
            self._refresh()

    def backward(self, result: LossOutput, micro_batch: MicroBatch, counts: GlobalCounts) -> dict[str, float]:
        """Add one micro-batch's gradient; returns the loss's metrics and `loss` itself. A fused optimizer
        moves the weights here.

        Raises TrainingError for a loss that is NaN or infinite, before any gradient of it is added, and
        for a part of an update where the optimizer wants it whole.
        """
        values = torch.stack([result.loss.detach(), *result.metrics.values()]).tolist()
        metrics = dict(zip(("loss", *result.metrics), values, strict=True))
        if not math.isfinite(metrics["loss"]):
            raise TrainingError(_not_finite(metrics, micro_batch, self._trainer_key))
        if self._fused:
            require_whole(micro_batch, counts)
        result.loss.backward()  # type: ignore[no-untyped-call]
        if self._copy and not self._fused:
            self._copy.collect_gradients()
        return metrics

    def set_lr(self, lr: float) -> None:
        """The learning rate of the next update; a fused one begins with `forward_backward`."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr

    def set_weight_decay(self, weight_decay: float) -> None:
        """The same for the weight decay, where it does not stay what the run file says."""
        for group in self._optimizer.param_groups:
            group["weight_decay"] = weight_decay

    def step(self) -> float:
        """Clip, update the weights, forget the gradient; returns the norm before clipping.

        Raises TrainingError for a norm that is NaN or infinite, before any weight changes (but where
        the optimizer is fused with backward, and they have changed already).
        """
        if self._fused:
            return self._end_fused(self._fused.norm())
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = whole(nn.utils.get_total_norm(gradients))
        if not torch.isfinite(norm):
            raise TrainingError(
                f"The norm of the gradient is {float(norm)}, so no update was made and the weights are as "
                "they were. The losses were finite: look for extreme log-probs or advantages, or lower the "
                f"learning rate ({self._trainer_key}.optimizer.lr)."
            )
        if self._max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self._parameters.values(), self._max_grad_norm, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if not self._show_average():
            self._refresh()
        return float(norm)

    def snapshot(self) -> Snapshot:
        """What is trained (with LoRA the adapter alone), and the optimizer's state unless
        `checkpoint.optimizer` says no."""
        self._show_average()
        tensors: dict[str, Mapping[str, Tensor]] = {WEIGHTS: self._parameters}
        texts = {}
        if self._checkpoint.optimizer:
            tensors[TENSORS] = dict(optimizer_tensors(self._optimizer, self._names))
            texts[NUMBERS] = optimizer_numbers(self._optimizer, self._names)
        return Snapshot(tensors, texts, self._checkpoint.writers)

    def load(self, folder: Path) -> None:
        """Take back exactly what a snapshot wrote, but the optimizer where `resume_optimizer` says no.

        Raises CheckpointError if it is of another model.
        """
        saved = StoredTensors(folder, WEIGHTS)
        if saved.shapes != {name: p.shape for name, p in self._parameters.items()}:
            raise CheckpointError(
                f"{folder / WEIGHTS} holds other weights than this run trains: `{self._model_key}` in the "
                "run file is not what it was when the checkpoint was written."
            )
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(saved.read_like(name, parameter))
        if self._checkpoint.optimizer and self._checkpoint.resume_optimizer:
            read_optimizer(folder, self._optimizer, self._names)
        self._refresh()

    @property
    def _names(self) -> dict[Tensor, str]:
        return {parameter: name for name, parameter in self._parameters.items()}

    def _refresh(self) -> None:
        if self._copy:
            self._copy.refresh()

    def _show_average(self) -> bool:
        """Bring schedule-free's average into the weights; says whether they changed."""
        if not (self._averaging and self._averaging.param_groups[0]["train_mode"]):
            return False
        self._averaging.eval()
        self._refresh()
        return True

    def _end_fused(self, norm: Tensor) -> float:
        if not torch.isfinite(norm):
            raise TrainingError(
                f"The norm of the gradient is {float(norm)}, and the weights moved by it during backward: "
                "they are spoiled. The loss was finite: look for extreme log-probs or advantages, or lower "
                f"the learning rate ({self._trainer_key}.optimizer.lr)."
            )
        return float(norm)


def summed(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of each metric."""
    totals: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def _not_finite(metrics: Mapping[str, float], micro_batch: MicroBatch, where: str) -> str:
    experiences = [str(e) for e in micro_batch.experience if e >= 0]
    others = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name != "loss")
    return (
        f"The loss of a micro-batch is {metrics['loss']}, so no update was made and the weights are as "
        f"they were. It held the batch's experiences {', '.join(experiences)}; its other metrics were: "
        f"{others or 'none'}. Look for extreme rewards or log-probs in them, or lower the learning "
        f"rate ({where}.optimizer.lr)."
    )
