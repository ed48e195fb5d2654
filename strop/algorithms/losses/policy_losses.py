"""Policy losses per token, from probability ratios and advantages."""

from __future__ import annotations

from typing import assert_never

import torch

from strop.algorithms.log_ratios import bound_exponent
from strop.algorithms.losses.aggregation import TargetTokens
from strop.algorithms.losses.covariance_losses import clip_cov, kl_cov
from strop.algorithms.losses.group_variance import gvpo
from strop.algorithms.losses.loss_terms import PolicyLossTerms
from strop.algorithms.losses.off_policy_losses import off_policy_loss_terms
from strop.algorithms.losses.second_moment import m2po
from strop.algorithms.losses.self_play import self_play
from strop.algorithms.losses.trust_region_losses import dppo, gmpo, sapo, sequence_log_ratio
from strop.config.schema.policy_loss import (
    CispoLossConfig,
    ClipCovLossConfig,
    ClippedLossConfig,
    DppoKlLossConfig,
    DppoTvLossConfig,
    DroLossConfig,
    GmpoLossConfig,
    GpgLossConfig,
    GspoLossConfig,
    GvpoLossConfig,
    ImportanceSamplingLossConfig,
    KlCovLossConfig,
    M2poLossConfig,
    OpmdLossConfig,
    PolicyLossConfig,
    RecLossConfig,
    SapoLossConfig,
    SelfPlayLossConfig,
    SppoLossConfig,
    ToprLossConfig,
)


def log_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor | None) -> torch.Tensor:
    """[K] log(new / old) within +-20. `None` stands for the current log-probs: it is 0, with their gradient."""
    return bound_exponent(logprobs - (logprobs.detach() if old_logprobs is None else old_logprobs))


def policy_loss_terms(
    config: PolicyLossConfig,
    logprobs: torch.Tensor,
    ratio: torch.Tensor,
    advantages: torch.Tensor,
    targets: TargetTokens,
) -> PolicyLossTerms:
    """The loss that a `policy_loss` section selects.

    Args:
        logprobs: [K] under the current weights, with gradient.
        ratio: [K] `log_ratio` of these.
        advantages: [K] of the targets.
    """
    match config:
        case ClippedLossConfig():
            return ppo_clip(
                ratio, advantages, low=config.clip_low, high=config.clip_high, dual=config.dual_clip
            )
        case GspoLossConfig():
            sequence = sequence_log_ratio(ratio, targets)
            return ppo_clip(sequence, advantages, low=config.clip_low, high=config.clip_high, dual=None)
        case CispoLossConfig():
            return cispo(
                logprobs,
                ratio,
                advantages,
                low=config.clip_low,
                high=config.clip_high,
                mask_clipped=config.mask_clipped,
            )
        case GpgLossConfig():
            return reinforce(logprobs, advantages)
        case OpmdLossConfig():
            return reinforce(logprobs, advantages / (1 + config.tau))
        case ClipCovLossConfig():
            clipped = ppo_clip(ratio, advantages, low=config.clip_low, high=config.clip_high, dual=None)
            return clip_cov(clipped, _selected(targets))
        case KlCovLossConfig():
            return kl_cov(ratio, advantages, _selected(targets), kl_coef=config.kl_coef)
        case M2poLossConfig():
            return m2po(importance_sampling(ratio, advantages), _selected(targets))
        case GvpoLossConfig():
            return gvpo(ratio, advantages, targets, beta=config.beta)
        case SelfPlayLossConfig():
            return self_play(ratio, advantages, targets, eta=config.eta)
        case ImportanceSamplingLossConfig():
            return importance_sampling(ratio, advantages)
        case GmpoLossConfig():
            return gmpo(ratio, advantages, targets, low=config.clip_low, high=config.clip_high)
        case SapoLossConfig():
            return sapo(
                logprobs,
                ratio,
                advantages,
                tau_pos=config.tau_pos,
                tau_neg=config.tau_neg,
                gate_as_weight=config.gate == "weight",
            )
        case DppoTvLossConfig() | DppoKlLossConfig():
            return dppo(config, logprobs, ratio, advantages)
        case ToprLossConfig() | SppoLossConfig() | RecLossConfig() | DroLossConfig():
            return off_policy_loss_terms(config, logprobs, ratio, advantages)
        case _:
            assert_never(config)


def vanishes_at_zero_advantage(config: PolicyLossConfig) -> bool:
    """Whether a target whose advantage is 0 has the loss 0 and no gradient, whatever its log-probs are."""
    match config:
        case KlCovLossConfig():
            return config.kl_coef == 0
        case RecLossConfig():
            return config.regularizer == "none" or config.regularizer_coef == 0
        case DroLossConfig() | GvpoLossConfig() | SelfPlayLossConfig():
            return False
        case (
            ClippedLossConfig()
            | GspoLossConfig()
            | CispoLossConfig()
            | GpgLossConfig()
            | OpmdLossConfig()
            | ClipCovLossConfig()
            | M2poLossConfig()
            | ImportanceSamplingLossConfig()
            | GmpoLossConfig()
            | SapoLossConfig()
            | DppoTvLossConfig()
            | DppoKlLossConfig()
            | ToprLossConfig()
            | SppoLossConfig()
        ):
            return True
        case _:
            assert_never(config)


def _selected(targets: TargetTokens) -> torch.Tensor:
    if targets.selected is None:
        raise ValueError(
            "clip_cov, kl_cov and m2po need the update's selected tokens, which the micro-batch does not have"
        )
    return targets.selected


def ppo_clip(
    log_ratio: torch.Tensor, advantages: torch.Tensor, *, low: float, high: float, dual: float | None
) -> PolicyLossTerms:
    """PPO's clipped surrogate (arXiv 1707.06347, equation 7), negated.

        max(-A * ratio, -A * clip(ratio, 1 - low, 1 + high))

    Different bounds on the two sides are DAPO's "clip-higher" (arXiv 2503.14476). Where A < 0, the surrogate
    has no upper bound in the ratio but the one of `log_ratio`, e^20; dual clip (arXiv 1912.09729) bounds it by
    -A * dual. Where a bound applies, the gradient is 0.
    """
    ratio = log_ratio.exp()
    lowest, highest = 1 - low, 1 + high
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(lowest, highest))
    gains, loses = advantages > 0, advantages < 0
    bounded = torch.zeros_like(loses)
    if dual is not None:
        bounded = loses & (ratio > dual)
        loss = torch.where(bounded, -advantages * dual, loss)
    return PolicyLossTerms(loss, loses & (ratio < lowest), gains & (ratio > highest), bounded)


def cispo(
    logprobs: torch.Tensor,
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    *,
    low: float | None,
    high: float,
    mask_clipped: bool = False,
) -> PolicyLossTerms:
    """CISPO (MiniMax-M1, arXiv 2506.13585, equation 4), negated.

        -A * stop_gradient(clip(ratio, 1 - low, 1 + high)) * log pi

    Every token keeps its gradient; its weight is bounded. `low` None means no lower bound. TRL's
    `epsilon_high` is the bound itself, 1 + high, and TRL has no lower bound. `mask_clipped` drops the tokens whose
    ratio has passed the bound in the advantage's direction (Trinity-RFT).
    """
    ratio = log_ratio.detach().exp()
    lowest, highest = (0.0 if low is None else 1 - low), 1 + high
    loss = -advantages * ratio.clamp(lowest, highest) * logprobs
    if mask_clipped:
        passed = ((ratio > highest) & (advantages > 0)) | ((ratio < lowest) & (advantages < 0))
        loss = torch.where(passed, 0.0, loss)
    return PolicyLossTerms(loss, ratio < lowest, ratio > highest, torch.zeros_like(ratio, dtype=torch.bool))


def reinforce(logprobs: torch.Tensor, advantages: torch.Tensor) -> PolicyLossTerms:
    """REINFORCE (Williams, 1992), negated: -A * log pi, without bounds. The loss of GPG and OPMD."""
    return PolicyLossTerms.unbounded(-advantages * logprobs)


def importance_sampling(log_ratio: torch.Tensor, advantages: torch.Tensor) -> PolicyLossTerms:
    """Importance-weighted policy gradient without bounds, negated: -A * ratio."""
    return PolicyLossTerms.unbounded(-advantages * log_ratio.exp())
