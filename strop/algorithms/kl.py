"""How far one policy is from another, estimated from the tokens that were sampled.

John Schulman, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html). With tokens drawn
from pi and r = ref / pi:

    k1   -log r                 unbiased, of high variance, may be negative
    abs  |log r|                biased; a distance, not a divergence
    k2   (log r)^2 / 2          biased a little, of low variance
    k3   (r - 1) - log r        unbiased, of low variance, never negative

An estimator that is good as a value need not be good as a loss, where what counts is its
gradient with respect to pi's parameters. With grad = grad log pi, per token:

    k1   grad                   0 in expectation: it does not pull towards the reference at all
    abs  sign(log pi / ref) grad
    k2   log(pi / ref) grad     in expectation the gradient of KL(pi || ref)
    k3   (1 - ref / pi) grad    in expectation the gradient of KL(ref || pi)

The fifth, `full`, is the divergence itself, over the whole vocabulary: it needs both models' logits, and
so is made where those are (`strop/models/logprobs.py`).

The formulas are taken as they stand; verl clamps log r to 20 and k3 to 10 on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

import torch

from strop.config.schema.algorithm import SampledKl


def divergence(logprobs: torch.Tensor, ref_logprobs: torch.Tensor, estimator: SampledKl) -> torch.Tensor:
    """KL(policy || reference) per token, both [K]; the tokens were drawn from the policy."""
    log_ratio = ref_logprobs - logprobs
    match estimator:
        case "k1":
            return -log_ratio
        case "abs":
            return log_ratio.abs()
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return torch.expm1(log_ratio) - log_ratio
        case _:
            assert_never(estimator)


def mean_over_rollouts(divergences: torch.Tensor, tokens: torch.Tensor) -> float:
    """What a controller follows: the mean over rollouts of the mean over each one's targets, in nats.

    Args:
        divergences: [K] rollouts end to end.
        tokens: [N] targets of each.
    """
    rollout = torch.arange(len(tokens), device=tokens.device).repeat_interleave(tokens)
    sums = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    return float((sums.index_add(0, rollout, divergences.double()) / tokens).mean())


@dataclass(frozen=True, slots=True)
class FixedCoef:
    """A coefficient of the KL penalty in the reward that stays as it is."""

    coef: float

    def update(self, kl: float, rollouts: int) -> FixedCoef:
        """Itself."""
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveCoef:
    """A coefficient that follows the divergence (Ziegler et al., arXiv 1909.08593, section 2.2).

        e = clip(kl / target_kl - 1, -0.2, 0.2)
        coef <- coef (1 + e rollouts / horizon)

    The paper's K_beta of 0.1 is rollouts / horizon here, as in TRL, verl and Trinity-RFT. All of
    the state is `coef`.
    """

    coef: float
    target_kl: float
    """Nats per token, measured as `kl` is."""
    horizon: int
    """Rollouts."""

    def update(self, kl: float, rollouts: int) -> AdaptiveCoef:
        """The coefficient after so many rollouts with this divergence."""
        error = min(max(kl / self.target_kl - 1, -0.2), 0.2)
        return replace(self, coef=self.coef * (1 + error * rollouts / self.horizon))


KlController = FixedCoef | AdaptiveCoef
