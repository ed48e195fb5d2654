"""The critic on one rank: values, gradients, and its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from strop.errors import ModelError
from strop.models.packed_attention.forward import can_share_prompts
from strop.models.value_model import token_values
from strop.models.vision.model_images import ModelImages
from strop.protocols import ValueLossFn
from strop.training.optimized_model import OptimizedModel, mark_last
from strop.training.parallel.parallelize import Parallelizer
from strop.training.specs import CriticSpec
from strop.types import GlobalCounts, MicroBatch


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
