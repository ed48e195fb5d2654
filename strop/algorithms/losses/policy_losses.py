"""Policy losses per token, from probability ratios and advantages, and the tokens that these or filters select.

Clip-Cov and KL-Cov: Cui et al., "The Entropy Mechanism of RL for Reasoning Language Models" (arXiv 2505.22617).
M2PO: Zheng et al., "Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?" (arXiv
2510.01161).
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

import torch

from strop.algorithms.kl import bound_exponent
from strop.algorithms.losses.aggregation import PolicyLossTerms, TargetTokens
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


def select_tokens(
    config: ClipCovLossConfig | KlCovLossConfig,
    logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    seed: int,
) -> torch.Tensor:
    """[K] bool: the tokens of one update that the loss treats differently.

    They are chosen by covariance(token) = (log pi - mean of log pi) * (A - mean of A), with means over all K tokens.
    KL-Cov takes the largest, Clip-Cov a random choice between its bounds. verl takes the current log-probs of each
    micro-batch; here they are those of the old policy over the update, so that the choice does not depend on
    micro-batches.

    Args:
        config: the policy loss.
        logprobs: [K] of all targets of the update, by the old policy.
        advantages: [K]
        seed: seed of Clip-Cov's choice.
    """
    covariance = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
    count = max(1, int(config.token_fraction * len(covariance)))
    if isinstance(config, KlCovLossConfig):
        chosen = covariance.topk(min(count, len(covariance))).indices
    else:
        between = (covariance > config.covariance_low) & (covariance < config.covariance_high)
        candidates = between.nonzero().squeeze(1)
        order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(seed))
        chosen = candidates[order[:count]]
    return torch.zeros_like(covariance, dtype=torch.bool).index_fill(0, chosen, True)


def clip_cov(clipped: PolicyLossTerms, selected: torch.Tensor) -> PolicyLossTerms:
    """Clip-Cov: the clipped surrogate, with the loss and the gradient 0 of selected tokens."""
    return replace(clipped, loss=torch.where(selected, 0.0, clipped.loss))


def kl_cov(
    log_ratio: torch.Tensor, advantages: torch.Tensor, selected: torch.Tensor, *, kl_coef: float
) -> PolicyLossTerms:
    """KL-Cov, negated: -A * ratio, plus kl_coef * |log ratio| for selected tokens.

    In the first update of a step the ratio is 1 and the penalty has no gradient.
    """
    penalty = torch.where(selected, kl_coef * log_ratio.abs(), 0.0)
    return PolicyLossTerms.unbounded(penalty - advantages * log_ratio.exp())


def excess_tokens(
    log_ratio: torch.Tensor, advantages: torch.Tensor, *, max_second_moment: float
) -> torch.Tensor:
    """[K] bool: the tokens of one update that M2PO leaves without a gradient.

    Among the tokens that the update moves further away from the old policy (log_ratio and advantage have the same
    sign), those of the largest squared log-ratio, as few as leave a mean of at most `max_second_moment` among the rest.

    Args:
        log_ratio: [K] log(current / old) of all targets of the update.
        advantages: [K]
        max_second_moment: the bound, in nats squared.
    """
    moving = (log_ratio * advantages > 0).nonzero().squeeze(1)
    squares, order = log_ratio[moving].double().square().sort(stable=True)
    means = squares.cumsum(0) / torch.arange(1, len(squares) + 1, device=squares.device)
    kept = int((means <= max_second_moment).sum())
    excess = torch.zeros_like(log_ratio, dtype=torch.bool)
    excess[moving[order[kept:]]] = True
    return excess


def m2po(unbounded: PolicyLossTerms, excess: torch.Tensor) -> PolicyLossTerms:
    """M2PO, negated: -A * ratio, with the loss and the gradient 0 of `excess_tokens`."""
    return replace(unbounded, loss=torch.where(excess, 0.0, unbounded.loss))


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


def clip_b(
    logprobs: torch.Tensor, entropies: torch.Tensor, advantages: torch.Tensor, *, deviations: float
) -> torch.Tensor:
    """[K] bool: the tokens that Clip_B keeps ("On the Entropy Dynamics in Reinforcement Fine-Tuning of Large Language
    Models", arXiv 2602.03392).

    With the probability p of a token and the entropy H of its distribution, S = p (H + log p) is negative for a token
    that is less likely than the typical one; a negative advantage makes it less likely still, which lowers the entropy.
    Tokens with a negative advantage are left out where S is more than `deviations` standard deviations below its mean
    over all K tokens.

    Args:
        logprobs: [K] of all targets of a step, by the old policy.
        entropies: [K] in nats.
        advantages: [K]
        deviations: the bound (the paper's mu).
    """
    signal = _signal(logprobs, entropies)
    centered = signal - signal.mean()
    bound = deviations * signal.std(correction=0)
    return (advantages >= 0) | (centered >= -bound)


def clip_v(
    logprobs: torch.Tensor,
    entropies: torch.Tensor,
    expected: torch.Tensor,
    advantages: torch.Tensor,
    *,
    deviations: float,
    max_fraction: float | None,
) -> torch.Tensor:
    """[K] bool: the tokens that Clip_V keeps (arXiv 2602.03392), which compares S = p (H + log p) of a token with the
    expectation of S over the vocabulary, sum of p^2 (H + log p), instead of the mean over tokens.

    Tokens without a positive advantage are left out where S is more than `deviations` standard deviations of this
    difference below its expectation. As in Trinity-RFT, of more than `max_fraction` of the K tokens, at least 1, only
    those of negative advantage with the largest differences are left out.

    Args:
        logprobs: [K] of all targets of a step, by the old policy.
        entropies: [K] in nats.
        expected: [K] expectation of S at each target.
        advantages: [K]
        deviations: the bound (the paper's mu).
        max_fraction: maximum fraction of left out tokens; None for no maximum.
    """
    difference = expected.double() - _signal(logprobs, entropies)
    bound = deviations * difference.std(correction=0)
    if float(bound) == 0:
        return torch.ones_like(advantages, dtype=torch.bool)
    dropped = (advantages <= 0) & (difference > bound)
    punished = dropped & (advantages < 0)
    if max_fraction is None or int(dropped.sum()) <= max_fraction * len(dropped):
        return ~dropped
    limit = max(int(max_fraction * len(dropped)), 1)
    if int(punished.sum()) > limit:
        largest = difference.masked_fill(~punished, -torch.inf).topk(limit).indices
        dropped = dropped & ~punished
        dropped[largest] = True
    return ~dropped


def _signal(logprobs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    """[K] float64: S = p (H + log p)."""
    return logprobs.double().exp() * (entropies.double() + logprobs.double())
