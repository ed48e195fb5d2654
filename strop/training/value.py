"""The training engine of a critic: what `SingleEngine` is to a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from strop.config.schema import Run
from strop.config.schema.critic import Critic
from strop.errors import ModelError
from strop.models.attention import can_share_prompts
from strop.models.value import ValueModel, load_value_model, token_values
from strop.protocols import ValueLossFn
from strop.training.learner import Learner, summed
from strop.training.place import Place, here
from strop.types import GlobalCounts, MicroBatch


class ValueEngine(Learner):
    """Holds a value model and its optimizer. Raises ModelError for a model that cannot be used.

    Of torch's random state it uses what the policy's engine keeps, and leaves it as it was when made.
    """

    model: ValueModel

    def __init__(self, run: Run, critic: Critic, place: Place | None = None) -> None:
        """`place` is this process's device where none is given."""
        place = place or here(run)
        self.device = place.device
        section = critic.model or run.model
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(run.seed)
            try:
                model = load_value_model(section, device=place.loads_to)
            except ModelError as error:
                raise ModelError(f"algorithm.critic: {error}") from error
        placed = place.put(model, model.decoder, section)
        self._inside = placed.inside
        super().__init__(
            model,
            critic.optimizer,
            copy=placed.copy,
            max_grad_norm=critic.max_grad_norm,
            checkpoint=run.checkpoint,
            where=("algorithm.critic.model" if critic.model else "model", "algorithm.critic"),
        )
        self.shares_prompts, _ = can_share_prompts(self.model.decoder)

    def forward_backward(
        self, micro_batches: Sequence[MicroBatch], loss_fn: ValueLossFn, counts: GlobalCounts
    ) -> Mapping[str, float]:
        """Add the micro-batches' gradients; returns the sums of the loss's metrics, and of `loss` itself.

        Raises TrainingError for a loss that is NaN or infinite, before any gradient of it is added.
        """
        self.train()
        rows = []
        for micro_batch in micro_batches:
            values = self._inside(token_values, micro_batch)
            rows.append(self.backward(loss_fn(micro_batch, values, counts), micro_batch, counts))
        return summed(rows)

    @torch.no_grad()
    def values(self, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        """[T] of each, without gradient, by the current weights."""
        self.model.eval()
        return [self._inside(token_values, micro_batch) for micro_batch in micro_batches]
