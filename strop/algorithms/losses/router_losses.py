"""Losses on the routers of a mixture of experts: load balance and z-loss.

Shapes: T tokens of a micro-batch, E experts; logits have one tensor [T, E] for each layer with experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strop.config.schema.trainer import RouterLossConfig
from strop.types import GlobalCounts, LossOutput


def expert_counts(logits: Sequence[torch.Tensor], weights: torch.Tensor, top_k: int) -> torch.Tensor:
    """[layers, E] float64: number of tokens that each layer's router gives to each expert.

    Args:
        logits: [T, E] of each layer.
        weights: [T] number of times that each token counts.
        top_k: number of experts per token, which are those of the largest logits.
    """
    repeated = weights.double().repeat_interleave(top_k)
    counts = [
        repeated.new_zeros(each.shape[1]).index_add(0, each.topk(top_k, dim=-1).indices.flatten(), repeated)
        for each in logits
    ]
    return torch.stack(counts)


@dataclass(frozen=True, slots=True)
class RouterLoss:
    """The losses of one update as sums over its micro-batches.

    With N tokens of an update, f_le the fraction of them that layer l gives to expert e (f sums to k over experts),
    P_le the mean of layer l's probabilities, and k experts per token:

        balance over layers   sum over l of (E / k) sum over e of f_le P_le        Megatron's `aux_loss`
        balance over a model  E sum over e of mean_l(f_le) mean_l(P_le)            transformers
        z                     sum over l of mean over tokens of (log sum exp logits)^2

    f has no gradient, so that with f of the whole update (the global-batch balance of arXiv 2501.11873) the loss is a
    sum over tokens, and micro-batches and ranks change nothing but rounding.
    """

    config: RouterLossConfig
    top_k: int

    def __call__(
        self,
        logits: Sequence[torch.Tensor],
        weights: torch.Tensor,
        load: torch.Tensor | None,
        counts: GlobalCounts,
    ) -> LossOutput:
        """
        Args:
            logits: [T, E] of each layer, with gradient.
            weights: [T] number of times that each token counts.
            load: [layers, E] f, of the whole update; may be None without a balance loss.
            counts: `counts.all_tokens` is N.

        Raises ValueError where the load is needed and missing.
        """
        every = torch.stack([each.float() for each in logits])
        parts = {}
        if self.config.balance_coef > 0:
            if load is None:
                raise ValueError(
                    "trainer.router_loss needs the load of the experts over the update; it is missing"
                )
            probabilities = torch.einsum("t,lte->le", weights, every.softmax(-1)) / counts.all_tokens
            parts["router/balance_loss"] = self.config.balance_coef * self._balance(
                load.to(probabilities), probabilities
            )
        if self.config.z_coef > 0:
            squares = torch.logsumexp(every, -1).square() @ weights
            parts["router/z_loss"] = self.config.z_coef * squares.sum() / counts.all_tokens
        loss = torch.stack(list(parts.values())).sum()
        return LossOutput(loss, {name: part.detach() for name, part in parts.items()})

    def _balance(self, load: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        experts = load.shape[1]
        if self.config.balance_over == "model":
            return experts * (load.mean(0) * probabilities.mean(0)).sum()
        return experts / self.top_k * (load * probabilities).sum()


def add_losses(first: LossOutput, second: LossOutput) -> LossOutput:
    """The sum of two losses, with the metrics of both."""
    return LossOutput(first.loss + second.loss, {**first.metrics, **second.metrics})
