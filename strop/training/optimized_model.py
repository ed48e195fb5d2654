"""A model with its optimizer on one rank: backward pass, clipping, updates, and state on disk.

`PolicyModel` and `CriticModel` add what they compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from strop.config.schema.optimizer import OptimizerConfig, ScheduleFreeSgdConfig
from strop.config.schema.record import CheckpointConfig
from strop.errors import CheckpointError, TrainingError
from strop.models.dtensor import full_tensor
from strop.training.checkpoints.file_writer import (
    OPTIMIZER_SCALARS_FILE,
    OPTIMIZER_TENSORS_FILE,
    WEIGHTS_FILE,
)
from strop.training.checkpoints.tensors import LocalSnapshot, ShardedTensors
from strop.training.mixed_precision import ComputeCopy, trainable_parameters
from strop.training.model_state import ModelState, TorchState
from strop.training.optimizers import (
    UNDECAYED,
    FusedBackward,
    ScheduleFreeOptimizer,
    build_optimizer,
    require_single_micro_batch,
    undecayed_parameters,
)
from strop.training.parallel.parallelize import ShardedOptimizer
from strop.types import GlobalCounts, LossOutput, MicroBatch


@dataclass(frozen=True, slots=True)
class PendingMetrics:
    """Metrics of a micro-batch's loss that were not read from the device yet, so that the host does not wait."""

    names: tuple[str, ...]
    """[M] `loss`, and the names of its metrics."""
    values: Tensor
    """[M] float32"""
    experiences: tuple[int, ...]
    """Numbers of the micro-batch's experiences, for error messages."""

    @classmethod
    def of(cls, result: LossOutput, micro_batch: MicroBatch) -> PendingMetrics:
        """The metrics of a micro-batch's loss."""
        return cls(
            ("loss", *result.metrics),
            torch.stack([result.loss.detach(), *result.metrics.values()]),
            tuple(number for number in micro_batch.experience if number >= 0),
        )


class OptimizedModel:
    """A model with its optimizer, in one precision or in mixed precision."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerConfig,
        *,
        compute_copy: ComputeCopy | None,
        before_backward: Callable[[bool], None],
        sharded_optimizer: ShardedOptimizer | None,
        max_grad_norm: float | None,
        checkpoint: CheckpointConfig,
        model_key: str,
        trainer_key: str,
    ) -> None:
        """`compute_copy` runs forward and backward passes in place of `model`; `sharded_optimizer` replaces torch's
        backward pass and updates. `before_backward` is that of `LoadedModel`. `model_key` and `trainer_key` are the
        keys of the model's and the trainer's section in the run file, for error messages."""
        self.master = model
        """Model whose parameters the optimizer updates, in `dtype`."""
        self._compute_copy = compute_copy
        self.model: nn.Module = compute_copy.model if compute_copy else model
        """Model that runs forward passes, in `compute_dtype`; the master itself where the two are equal."""
        self._parameters = trainable_parameters(self.master)
        decays_all = optimizer.decay_norms_and_biases
        undecayed = frozenset() if decays_all else undecayed_parameters(self.master)
        self._optimizer = build_optimizer(optimizer, self._parameters, undecayed)
        self._averaging: ScheduleFreeOptimizer | None = None
        if isinstance(optimizer, ScheduleFreeSgdConfig):
            self._averaging = cast(ScheduleFreeOptimizer, self._optimizer)
        self._fused: FusedBackward | None = None
        if optimizer.fused_backward:
            computing = trainable_parameters(self.model)
            self._fused = FusedBackward(self._optimizer, self._parameters, computing)
        self._before_backward = before_backward
        self._sharded = sharded_optimizer
        self._state: ModelState = TorchState(self._parameters, self._optimizer)
        if sharded_optimizer is not None:
            self._state = sharded_optimizer.attach(self._optimizer, max_grad_norm)
        self._max_grad_norm = max_grad_norm
        self._checkpoint = checkpoint
        self._model_key, self._trainer_key = model_key, trainer_key

    @property
    def hidden_size(self) -> int:
        """Width of the decoder's residual stream."""
        decoder = next(module for module in self.master.modules() if isinstance(module, PreTrainedModel))
        return int(decoder.config.get_text_config().hidden_size)

    def train(self) -> None:
        """Switch to training mode. A schedule-free optimizer computes gradients at other weights than the
        average that is sampled from and saved."""
        self.model.train()
        if self._averaging and not self._averaging.param_groups[0]["train_mode"]:
            self._averaging.train()
            self._refresh()

    def backward(
        self, result: LossOutput, micro_batch: MicroBatch, counts: GlobalCounts, *, is_last: bool
    ) -> PendingMetrics:
        """Add one micro-batch's gradient; returns the loss's metrics. A fused optimizer updates the weights here.
        `is_last` is whether this is the last micro-batch of a `forward_backward`.

        With a fused optimizer, raises TrainingError for a loss that is NaN or infinite, and for a micro-batch that is
        not the whole update.
        """
        pending = PendingMetrics.of(result, micro_batch)
        if self._fused:
            require_single_micro_batch(micro_batch, counts)
            self.read_metrics([pending])
        if self._sharded:
            self._sharded.backward(result.loss)
            return pending
        self._before_backward(is_last)
        result.loss.backward()  # type: ignore[no-untyped-call]
        if self._compute_copy and not self._fused:
            self._compute_copy.collect_gradients()
        return pending

    def read_metrics(self, pending: Sequence[PendingMetrics]) -> dict[str, float]:
        """The sums over micro-batches of the metrics and of `loss`, read from the device at once.

        Raises TrainingError for a loss that is NaN or infinite, and drops the gradient.
        """
        values = iter(torch.cat([each.values for each in pending]).tolist() if pending else ())
        rows = [{name: next(values) for name in each.names} for each in pending]
        for row, each in zip(rows, pending, strict=True):
            if not math.isfinite(row["loss"]):
                self._optimizer.zero_grad(set_to_none=True)
                raise TrainingError(_not_finite(row, each.experiences, self._trainer_key))
        return sum_metrics(rows)

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update; a fused update starts with `forward_backward`."""
        for group in self._state.param_groups:
            group["lr"] = lr

    def set_weight_decay(self, weight_decay: float) -> None:
        """Set the weight decay of the next update, except of what the optimizer leaves out."""
        for group in self._state.param_groups:
            if not group.get(UNDECAYED):
                group["weight_decay"] = weight_decay

    def set_adam(self, betas: tuple[float, float], eps: float, max_grad_norm: float | None) -> None:
        """Set the decay rates and the constant of Adam, and the maximum gradient norm, of the next update."""
        for group in self._state.param_groups:
            group.update(betas=betas, eps=eps)
        self._max_grad_norm = max_grad_norm

    def reset_optimizer(self) -> None:
        """Forget the optimizer's moments, as a new one has none."""
        self._optimizer.state.clear()

    def drop_gradient(self) -> None:
        """Forget the gradient since the last update."""
        self._optimizer.zero_grad(set_to_none=True)

    def step(self) -> float:
        """Clip the gradient, update the weights, clear the gradient; returns the norm before clipping.

        Raises TrainingError for a norm that is NaN or infinite, before any weight changes (except with a fused
        optimizer, which has already changed them).
        """
        if self._fused:
            return self._end_fused(self._fused.pop_grad_norm())
        if self._sharded:
            norm_before = self._sharded.step()
            self._require_finite(norm_before)
            return norm_before
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = full_tensor(nn.utils.get_total_norm(gradients))
        self._require_finite(float(norm))
        if self._max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self._parameters.values(), self._max_grad_norm, norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if not self._show_average():
            self._refresh()
        return float(norm)

    def snapshot(self) -> LocalSnapshot:
        """Trained weights (with LoRA the adapter only), and the optimizer's state unless
        `checkpoint.save_optimizer` is false."""
        self._show_average()
        tensors: dict[str, Mapping[str, Tensor]] = {WEIGHTS_FILE: self._state.weights()}
        texts = {}
        if self._checkpoint.save_optimizer:
            tensors[OPTIMIZER_TENSORS_FILE] = self._state.optimizer_tensors()
            texts[OPTIMIZER_SCALARS_FILE] = self._state.optimizer_scalars()
        own = {OPTIMIZER_TENSORS_FILE} if self._state.divides_optimizer else set()
        return LocalSnapshot(tensors, texts, self._checkpoint.save_concurrency, frozenset(own))

    def load(self, folder: Path) -> None:
        """Restore the state that a snapshot wrote; the optimizer's only if `checkpoint.resume_optimizer`.

        Raises CheckpointError for another model's state.
        """
        saved = ShardedTensors(folder, WEIGHTS_FILE)
        if saved.shapes != self._state.shapes:
            raise CheckpointError(
                f"{folder / WEIGHTS_FILE} holds the weights of another model than this run trains: "
                f"`{self._model_key}` in the run file has changed since the checkpoint was written."
            )
        self._state.load_weights(saved)
        if self._checkpoint.save_optimizer and self._checkpoint.resume_optimizer:
            self._state.load_optimizer(folder)
        self._refresh()

    def _require_finite(self, norm: float) -> None:
        if not math.isfinite(norm):
            raise TrainingError(
                f"The norm of the gradient is {norm}; no update was made and the weights are unchanged. "
                "The losses were finite: look for extreme log-probs or advantages, or lower the learning rate "
                f"({self._trainer_key}.optimizer.lr)."
            )

    def _refresh(self) -> None:
        if self._compute_copy:
            self._compute_copy.refresh()

    def _show_average(self) -> bool:
        """Write a schedule-free optimizer's average into the weights; returns whether they changed."""
        if not (self._averaging and self._averaging.param_groups[0]["train_mode"]):
            return False
        self._averaging.eval()
        self._refresh()
        return True

    def _end_fused(self, norm: Tensor) -> float:
        if not torch.isfinite(norm):
            raise TrainingError(
                f"The norm of the gradient is {float(norm)}, and the weights were already updated with it during "
                "the backward pass: they are no longer usable. The loss was finite: look for extreme log-probs or "
                f"advantages, or lower the learning rate ({self._trainer_key}.optimizer.lr)."
            )
        return float(norm)


def mark_last(micro_batches: Iterable[MicroBatch]) -> Iterator[tuple[MicroBatch, bool]]:
    """The micro-batches, each with whether it is the last one."""
    previous: MicroBatch | None = None
    for micro_batch in micro_batches:
        if previous is not None:
            yield previous, False
        previous = micro_batch
    if previous is not None:
        yield previous, True


def sum_metrics(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum of each metric over micro-batches or ranks."""
    totals: dict[str, float] = {}
    for row in rows:
        for name, value in row.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals


def _not_finite(metrics: Mapping[str, float], experiences: Sequence[int], trainer_key: str) -> str:
    others = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name != "loss")
    return (
        f"The loss of a micro-batch is {metrics['loss']}; no update was made and the weights are unchanged. "
        f"The micro-batch held the batch's experiences {', '.join(map(str, experiences))}; its other metrics were: "
        f"{others or 'none'}. Look for extreme rewards or log-probs in them, or lower the learning "
        f"rate ({trainer_key}.optimizer.lr)."
    )
