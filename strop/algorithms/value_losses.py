"""What a critic minimises."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.algorithms.reduce import Targets, token_weights
from strop.types import GlobalCounts, LossOutput, MicroBatch


@dataclass(frozen=True, slots=True)
class ValueTerms:
    """The value loss of K targets, and where the bound was in force."""

    loss: torch.Tensor
    """[K] with gradient."""
    clipped: torch.Tensor
    """[K] bool: the bound value is further from the return, and so has no gradient."""


def value_terms(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, *, clip: float | None
) -> ValueTerms:
    """Half the squared error, with PPO's bound on how far a value moves, all [K].

        max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2

    From OpenAI's baselines and lm-human-preferences (Ziegler et al., arXiv 1909.08593); so have TRL,
    verl and Trinity-RFT it. Where the bound value is the worse one, it has no gradient: a value
    that has moved far enough towards its return is left alone.
    """
    free = (values - returns).square()
    if clip is None:
        return ValueTerms(free / 2, torch.zeros_like(free, dtype=torch.bool))
    bounded = (torch.maximum(torch.minimum(values, old_values + clip), old_values - clip) - returns).square()
    return ValueTerms(torch.maximum(free, bounded) / 2, bounded > free)


@dataclass(frozen=True, slots=True)
class ValueLoss:
    """The mean of the value loss over all targets of an update, whatever micro-batches they are in."""

    clip: float | None

    def __call__(self, micro_batch: MicroBatch, values: torch.Tensor, counts: GlobalCounts) -> LossOutput:
        """`values` [T] with gradient. Raises ValueError for a micro-batch without old values and returns."""
        if micro_batch.values is None or micro_batch.returns is None:
            raise ValueError("a critic learns from old values and returns; the micro-batch has none")
        targets = Targets.of(micro_batch)
        # Not the policy's aggregation: every state counts the same, as in all PPO implementations.
        weights = token_weights(targets, "token-mean", counts, max_response_tokens=0)
        old, returns = targets.take(micro_batch.values), targets.take(micro_batch.returns)
        terms = value_terms(targets.take(values), old, returns, clip=self.clip)
        clipped = terms.clipped.float().sum() / counts.tokens
        return LossOutput((weights * terms.loss).sum(), {"clip_fraction": clipped})


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float | None:
    """1 - Var(returns - values) / Var(returns), both [K].

    1 for a perfect critic, 0 for one that always says the same, below 0 for one that is worse.
    None where the returns do not vary: there is nothing to explain.
    """
    values, returns = values.double(), returns.double()
    variance = returns.var(correction=0)
    return None if variance == 0 else float(1 - (returns - values).var(correction=0) / variance)
