"""Policy losses for rollouts of older weights: TOPR, sPPO, REC and DRO. Weights and masks have no gradient."""

from __future__ import annotations

from typing import assert_never

import torch

from strop.algorithms.losses.loss_terms import PolicyLossTerms
from strop.config.schema.policy_loss import DroLossConfig, RecLossConfig, SppoLossConfig, ToprLossConfig


def off_policy_loss_terms(
    config: ToprLossConfig | SppoLossConfig | RecLossConfig | DroLossConfig,
    logprobs: torch.Tensor,
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
) -> PolicyLossTerms:
    """The loss that a `policy_loss` section of these types selects; all arguments are [K]."""
    match config:
        case ToprLossConfig():
            return topr(logprobs, log_ratio, advantages, threshold=config.threshold)
        case SppoLossConfig():
            return sppo(log_ratio, advantages, clip=config.clip)
        case RecLossConfig():
            return rec(config, logprobs, log_ratio, advantages)
        case DroLossConfig():
            return dro(logprobs, log_ratio, advantages, beta=config.beta)
        case _:
            assert_never(config)


def topr(
    logprobs: torch.Tensor, log_ratio: torch.Tensor, advantages: torch.Tensor, *, threshold: float
) -> PolicyLossTerms:
    """Tapered off-policy REINFORCE (Le Roux et al., arXiv 2503.14286), negated, with one ratio per token.

    -A * log pi,  and  -A * min(ratio, 1) * log pi  where A <= threshold
    """
    ratio, tapered = log_ratio.detach().exp(), advantages <= threshold
    weight = torch.where(tapered, ratio.clamp(max=1.0), torch.ones_like(ratio))
    nowhere = torch.zeros_like(tapered)
    return PolicyLossTerms(-advantages * weight * logprobs, nowhere, tapered & (ratio > 1), nowhere)


def sppo(log_ratio: torch.Tensor, advantages: torch.Tensor, *, clip: float) -> PolicyLossTerms:
    """Softmax PPO (Vaswani et al., arXiv 2108.05828), negated: -A * log ratio, where the ratio is between
    1 / (1 + clip) and 1 + clip; elsewhere 0."""
    ratio = log_ratio.detach().exp()
    below, above = ratio < 1 / (1 + clip), ratio > 1 + clip
    loss = torch.where(below | above, 0.0, -advantages * log_ratio)
    return PolicyLossTerms(loss, below, above, torch.zeros_like(below))


def rec(
    config: RecLossConfig, logprobs: torch.Tensor, log_ratio: torch.Tensor, advantages: torch.Tensor
) -> PolicyLossTerms:
    """REC (Yao et al., arXiv 2509.24203), negated: -A * weight * log pi of the tokens that are not clipped, plus
    the regularizer of all tokens."""
    ratio = log_ratio.detach().exp()
    below, above = ratio < 1 - config.clip_low, ratio > 1 + config.clip_high
    match config.clipping:
        case "none":
            below, above = torch.zeros_like(below), torch.zeros_like(above)
        case "one_side":
            below, above = below & (advantages < 0), above & (advantages > 0)
        case "ring":
            below = below & ~((advantages >= 0) & (ratio <= 1 - config.ring_low))
            above = above & ~((advantages <= 0) & (ratio >= 1 + config.ring_high))
    weighted = advantages
    if config.weight == "ratio":
        weighted = advantages * ratio
    elif config.weight == "advantage":
        weighted = advantages * (advantages / config.temperature).exp()
    loss = torch.where(below | above, 0.0, -weighted * logprobs)
    if config.regularizer == "k2":
        loss = loss + config.regularizer_coef * log_ratio.square()
    elif config.regularizer == "forward_kl":
        loss = loss - config.regularizer_coef * logprobs
    return PolicyLossTerms(loss, below, above, torch.zeros_like(below))


def dro(
    logprobs: torch.Tensor, log_ratio: torch.Tensor, advantages: torch.Tensor, *, beta: float
) -> PolicyLossTerms:
    """Direct reward optimization's policy loss (Richemond et al., arXiv 2405.19107), with the old policy as the
    reference: -A * log pi + beta / 2 * (log ratio)^2."""
    return PolicyLossTerms.unbounded(-advantages * logprobs + beta / 2 * log_ratio.square())
