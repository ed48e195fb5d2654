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

The formulas are taken as they stand; verl clamps log r to 20 and k3 to 10 on both sides.
"""

from __future__ import annotations

from typing import assert_never

import torch

from strop.config.schema.algorithm import KlEstimator


def divergence(logprobs: torch.Tensor, ref_logprobs: torch.Tensor, estimator: KlEstimator) -> torch.Tensor:
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
