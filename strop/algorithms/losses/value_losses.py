"""Losses of a critic: squared error of values, with PPO's clipping."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.algorithms.losses.aggregation import TargetTokens, token_weights
from strop.config.schema.policy_gradient import Aggregation
from strop.types import GlobalCounts, LossOutput, MicroBatch


@dataclass(frozen=True, slots=True)
class ValueLossTerms:
    """Value loss of K targets, and where it was clipped."""

    loss: torch.Tensor
    """[K] Losses, with gradient."""
    clipped: torch.Tensor
    """[K] bool: True where the clipped value is further from the return; the gradient is 0 there."""


def value_loss_terms(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, *, clip: float | None
) -> ValueLossTerms:
    """Half the squared error, with PPO's bound on the change of a value, all [K].

        max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2

    From OpenAI's baselines and lm-human-preferences (Ziegler et al., arXiv 1909.08593), as in TRL, verl and
    Trinity-RFT. Where the clipped value has the larger error, the gradient is 0: a value that has moved
    far enough towards its return stays.
    """
    free = (values - returns).square()
    if clip is None:
        return ValueLossTerms(free / 2, torch.zeros_like(free, dtype=torch.bool))
    bounded = (torch.maximum(torch.minimum(values, old_values + clip), old_values - clip) - returns).square()
    return ValueLossTerms(torch.maximum(free, bounded) / 2, bounded > free)


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """The value loss of an update, for any micro-batches."""

    clip: float | None
    """Maximum change of a value that counts; None for no limit."""
    aggregation: Aggregation = "token-mean"
    """Aggregation over the targets; the default is their mean."""
    max_response_tokens: int = 0
    """Divisor of `seq-mean-token-sum-norm`."""

    def __call__(self, micro_batch: MicroBatch, values: torch.Tensor, counts: GlobalCounts) -> LossOutput:
        """`values` [T] with gradient. Raises ValueError for a micro-batch without old values and returns."""
        if micro_batch.values is None or micro_batch.returns is None:
            raise ValueError(
                "the value loss needs old values and returns, which the micro-batch does not have"
            )
        targets = TargetTokens.of(micro_batch)
        weights = token_weights(
            targets, self.aggregation, counts, max_response_tokens=self.max_response_tokens
        )
        old, returns = targets.take(micro_batch.values), targets.take(micro_batch.returns)
        terms = value_loss_terms(targets.take(values), old, returns, clip=self.clip)
        clipped = terms.clipped.float().sum() / counts.tokens
        return LossOutput((weights * terms.loss).sum(), {"clip_fraction": clipped})


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float | None:
    """1 - Var(returns - values) / Var(returns), both [K].

    1 for a perfect critic, 0 for a constant one, below 0 for a worse one. None where the returns are all
    equal.
    """
    values, returns = values.double(), returns.double()
    variance = returns.var(correction=0)
    return None if variance == 0 else float(1 - (returns - values).var(correction=0) / variance)
