"""Policy losses that bound a response's ratio, or replace the clipping of ratios: GSPO's ratio, GMPO, SAPO and DPPO."""

from __future__ import annotations

from typing import assert_never

import torch

from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.loss_terms import PolicyLossTerms
from strop.config.schema.policy_loss import DppoKlLossConfig, DppoTvLossConfig

_EPSILON = 1e-8
"""Added to 1 - p in the binary KL, which is otherwise infinite at p = 1; the same as in verl."""


def sequence_log_ratio(log_ratio: torch.Tensor, targets: TargetTokens) -> torch.Tensor:
    """[K] Log of GSPO's ratio: the sequence's mean log-ratio as value, the token's own gradient (arXiv 2507.18071).

    This is the paper's GSPO-token. Where all advantages of a sequence are equal, as in GSPO, value and
    gradient under `seq-mean-token-mean` are those of the sequence-level objective.
    """
    value = log_ratio.detach()
    return log_ratio - value + targets.sequence_sum(value) / targets.tokens


def gmpo(
    log_ratio: torch.Tensor, advantages: torch.Tensor, targets: TargetTokens, *, low: float, high: float
) -> PolicyLossTerms:
    """Geometric-mean policy optimization (Zhao et al., arXiv 2507.20673), negated.

        -A * (product over the sequence's tokens of min(ratio, e^high)) ^ (1 / tokens)     where A > 0
        -A * (product over the sequence's tokens of max(ratio, e^-low)) ^ (1 / tokens)     where A < 0

    Ratios are bounded token by token, before the mean, and on the side of PPO's clipping only. As with GSPO, value
    and gradient are the paper's under `seq-mean-token-mean`.
    """
    above, below = (log_ratio > high) & (advantages > 0), (log_ratio < -low) & (advantages < 0)
    bounded = torch.where(above, high, torch.where(below, -low, log_ratio))
    loss = -advantages * sequence_log_ratio(bounded, targets).exp()
    return PolicyLossTerms(loss, below, above, torch.zeros_like(above))


def sapo(
    logprobs: torch.Tensor,
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    tau_pos: float,
    tau_neg: float,
    gate_as_weight: bool = False,
) -> PolicyLossTerms:
    """Soft adaptive policy optimization (Gao et al., arXiv 2511.20347), negated.

        -A * f(ratio),  f(x) = 4 / tau * sigmoid(tau * (x - 1)),  tau = tau_pos where A > 0, else tau_neg

    The gradient is that of REINFORCE at ratio 1, and falls smoothly on both sides. With `gate_as_weight` the loss is
    -A * stop_gradient(f(ratio)) * log pi (Trinity-RFT), whose weight is 2 / tau at ratio 1 and grows with the ratio.
    """
    tau = torch.where(advantages > 0, tau_pos, tau_neg)
    gate = 4 / tau * torch.sigmoid(tau * (log_ratio.exp() - 1))
    if gate_as_weight:
        return PolicyLossTerms.unbounded(-advantages * gate.detach() * logprobs)
    return PolicyLossTerms.unbounded(-advantages * gate)


def dppo(
    config: DppoTvLossConfig | DppoKlLossConfig,
    logprobs: torch.Tensor,
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
) -> PolicyLossTerms:
    """Divergence proximal policy optimization (Qi et al., arXiv 2602.04879), negated.

        -A * mask * stop_gradient(min(ratio, cap)) * log pi

    The mask removes a token whose probability p has moved in the advantage's direction by more than the threshold: in
    total variation |p - p_old|, or in the KL divergence between the binary distributions (p_old, 1 - p_old) and
    (p, 1 - p). Both are lower bounds of the divergence over the vocabulary.
    """
    moved = log_ratio.detach()
    # Rounding can put a certain token's log-prob above 0.
    p = logprobs.detach().exp().clamp(max=1)
    old = (logprobs.detach() - moved).exp().clamp(max=1)
    match config:
        case DppoTvLossConfig():
            divergence = (p - old).abs()
        case DppoKlLossConfig():
            rest = torch.log((1 - old + _EPSILON) / (1 - p + _EPSILON))
            divergence = (1 - old) * rest - old * moved
        case _:
            assert_never(config)
    above = (advantages > 0) & (moved > 0) & (divergence > config.divergence_high)
    below = (advantages < 0) & (moved < 0) & (divergence > config.divergence_low)
    weight = moved.exp().clamp(max=config.ratio_cap)
    loss = torch.where(above | below, 0.0, -advantages * weight * logprobs)
    return PolicyLossTerms(loss, below, above, torch.zeros_like(above))
