"""GVPO: the loss of a response, and the mean of the implicit rewards of a group that it refers to."""

from __future__ import annotations

import torch

from strop.algorithms.log_ratios import bound_exponent
from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.loss_terms import PolicyLossTerms


def gvpo(
    log_ratio: torch.Tensor, advantages: torch.Tensor, targets: TargetTokens, *, beta: float
) -> PolicyLossTerms:
    """Group variance policy optimization (Zhang et al., arXiv 2504.19599, equation 8), per response.

        ((beta s - m) - A)^2 / 2,   s = sum of the response's log-ratios,   m = mean of beta s over its group

    The group's responses can be in different micro-batches; so `advantages` are A + m, with m of the weights before the
    update (`mean_implicit_rewards`), which has no gradient in the paper's equation 9 either. A response's loss is
    divided among its targets, so that `seq-mean-token-sum` is the mean over responses; the paper divides by k - 1
    instead of k.

    Args:
        log_ratio: [K] of the targets, with gradient.
        advantages: [K] reward minus the group's mean reward, plus m; equal within a response.
        beta: factor of the implicit reward.
    """
    tokens = targets.tokens.to(log_ratio.dtype)
    distance = beta * targets.sequence_sum(log_ratio) - targets.sequence_sum(advantages) / tokens
    return PolicyLossTerms.unbounded(distance.square() / (2 * tokens))


def mean_implicit_rewards(
    log_ratio: torch.Tensor, tokens: torch.Tensor, group: torch.Tensor, *, beta: float
) -> torch.Tensor:
    """[K] Mean of beta s over the responses of each target's group.

    Args:
        log_ratio: [K] of the targets of N responses, end to end.
        tokens: [N] number of targets of each response.
        group: [N] int64 number of each response's group.
        beta: factor of the implicit reward.
    """
    response = torch.arange(len(tokens)).repeat_interleave(tokens)
    rewards = log_ratio.new_zeros(len(tokens)).index_add(0, response, beta * bound_exponent(log_ratio))
    groups = int(group.max()) + 1
    sums = log_ratio.new_zeros(groups).index_add(0, group, rewards)
    return (sums / torch.bincount(group, minlength=groups))[group][response]
