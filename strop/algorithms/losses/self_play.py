"""SPPO: the loss of a response, a regression of its log-ratio on its reward."""

from __future__ import annotations

import torch

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.loss_terms import PolicyLossTerms


def self_play(
    log_ratio: torch.Tensor, advantages: torch.Tensor, targets: TargetTokens, *, eta: float
) -> PolicyLossTerms:
    """Self-play preference optimization (Wu et al., arXiv 2405.00675, equation 3.6), per response.

        (s - eta A)^2,   s = sum of the response's log-ratios

    The minimum is pi = pi_old exp(eta A): the multiplicative-weights update of the paper's equation 3.1, with the
    logarithm of its normalizer as the baseline of A. A response's loss is divided among its targets, so that
    `seq-mean-token-sum` is the mean over responses.

    Args:
        log_ratio: [K] of the targets, with gradient.
        advantages: [K] equal within a response.
        eta: factor of the advantage.
    """
    tokens = targets.tokens.to(log_ratio.dtype)
    distance = targets.sequence_sum(log_ratio) - eta * targets.sequence_sum(advantages) / tokens
    return PolicyLossTerms.unbounded(distance.square() / tokens)
