"""The training engine of a critic: what `SingleEngine` is to a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from strop.config.schema import Run
from strop.config.schema.critic import Critic
from strop.errors import ModelError
from strop.models.attention import can_share_prompts
from strop.models.value import ValueModel, load_value_model, token_values
from strop.training.device import find_device
from strop.training.learner import Learner
from strop.types import GlobalCounts, LossOutput, MicroBatch

ValueLossFn = Callable[[MicroBatch, Tensor, GlobalCounts], LossOutput]
"""A loss of values [T], as `LossFn` is of log-probs."""


class ValueEngine(Learner):
    """Holds a value model and its optimizer. Raises ModelError for a model that cannot be used.

    Of torch's random state it uses what the policy's engine keeps, and leaves it as it was when made.
    """

    model: ValueModel

    def __init__(self, run: Run, critic: Critic) -> None:
        self.device = find_device(run.trainer.engine.device)
        section = critic.model or run.model
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(run.seed)
            try:
                model = load_value_model(section, device=self.device)
            except ModelError as error:
                raise ModelError(f"algorithm.critic: {error}") from error
        super().__init__(
            model,
            section,
            critic.optimizer,
            max_grad_norm=critic.max_grad_norm,
            keep_optimizer=run.checkpoint.optimizer,
            where=("algorithm.critic.model" if critic.model else "model", "algorithm.critic"),
        )
        self.shares_prompts, _ = can_share_prompts(self.model.decoder)

    def forward_backward(
        self, micro_batch: MicroBatch, loss_fn: ValueLossFn, counts: GlobalCounts
    ) -> Mapping[str, float]:
        """Add one micro-batch's gradient; returns the loss's metrics and `loss` itself.

        Raises TrainingError for a loss that is NaN or infinite, before any gradient of it is added.
        """
        self.train()
        values = token_values(self.model, micro_batch)
        return self.backward(loss_fn(micro_batch, values, counts), micro_batch, counts)

    @torch.no_grad()
    def values(self, micro_batch: MicroBatch) -> Tensor:
        """[T] without gradient, by the current weights."""
        self.model.eval()
        return token_values(self.model, micro_batch)
