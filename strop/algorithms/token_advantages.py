"""Advantage estimators with one value per token: REINFORCE++, GDPO, ReMax, GAE.

The K targets of N rollouts are concatenated; `tokens` [N] is the number of targets of each rollout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strop.algorithms.advantages import grpo
from strop.algorithms.groups import GroupIndex
from strop.algorithms.rollout_batch import RolloutBatch


@dataclass(frozen=True, slots=True)
class AdvantageEstimate:
    """Result of generalized advantage estimation."""

    advantages: torch.Tensor
    """[K] Advantages, not whitened."""
    returns: torch.Tensor
    """[K] Targets of the critic."""


def rewards_to_go(rewards: torch.Tensor, tokens: torch.Tensor, *, gamma: float) -> torch.Tensor:
    """[K] from [K]: sum of each target's reward and later ones of its rollout, discounted by `gamma`."""
    padded, real = _pad(rewards, tokens)
    return _discounted(padded, gamma)[real]


def whiten(values: torch.Tensor, epsilon: float = 1e-8) -> torch.Tensor:
    """[K] from [K] float64: values with mean 0 and standard deviation 1.

        (x - mean) / sqrt(variance + epsilon)

    with the unbiased variance (divided by K - 1), as in OpenAI's lm-human-preferences, TRL, verl and
    Trinity-RFT. A single value becomes 0.
    """
    centered = values - values.mean()
    variance = centered.square().sum() / max(len(values) - 1, 1)
    return centered * torch.rsqrt(variance + epsilon)


def reinforce_plus_plus(scored: RolloutBatch, *, gamma: float) -> torch.Tensor:
    """[K] REINFORCE++ (Hu et al., arXiv 2501.03262): whitened returns.

    A target's return is the reward at the rollout's end minus the KL penalties of this and later targets.
    Mean and standard deviation are taken over all targets of the step.
    """
    return whiten(rewards_to_go(scored.token_rewards(), scored.tokens, gamma=gamma))


def reinforce_plus_plus_baseline(scored: RolloutBatch) -> torch.Tensor:
    """[K] REINFORCE++ with a baseline (arXiv 2501.03262): whitened (r_i - mean(group)).

    Mean and standard deviation are taken over all targets of the step, so that long responses count more. A
    rollout that is alone in its group has the value 0 before whitening.
    """
    scores = scored.penalized_rewards()
    return whiten(scored.expand_to_tokens(scores - GroupIndex.of(scored.group).mean(scores)))


def gdpo(
    scored: RolloutBatch,
    *,
    weights: Sequence[float] | None,
    divide_by_std: bool = True,
    epsilon: float = 1e-6,
) -> torch.Tensor:
    """[K] GDPO (Liu et al., arXiv 2601.05242): whitened sum of each part's group-relative advantage.

        A_i = whiten(sum over k of w_k (r_ik - mean(group)) / (std(group) + epsilon))

    Each part of the reward is compared within the group on its own, so that a part of a large range does not hide
    the others; a rollout without a part (NaN) does not count in its statistics, and has the advantage 0 for it. Mean
    and standard deviation of the whitening are taken over all targets of the step, as in verl.
    `weights` [P] are those of the parts; None is 1. Raises ValueError where `RolloutBatch.reward_parts` is missing.
    """
    if scored.reward_parts is None:
        raise ValueError("gdpo needs the parts of the reward (RolloutBatch.reward_parts); they are missing")
    parts = scored.reward_parts.unbind(1)
    advantages = torch.zeros(len(scored.rewards), dtype=torch.float64)
    for weight, part in zip(weights or [1.0] * len(parts), parts, strict=True):
        has_part = ~part.isnan()
        if has_part.any():
            compared = grpo(
                part[has_part], scored.group[has_part], divide_by_std=divide_by_std, epsilon=epsilon
            )
            advantages[has_part] += weight * compared
    return whiten(scored.expand_to_tokens(advantages))


def logit_gradient_norms(
    logprobs: torch.Tensor, squared_probabilities: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """[K] squared norm of the gradient of a target's log-prob with respect to its logits, times the squared importance
    weight where there are weights: 1 - 2 p + (sum over the vocabulary of p^2)."""
    norms = 1 - 2 * logprobs.exp() + squared_probabilities
    return norms if weights is None else norms * weights.square()


def optimal_token_baseline(scored: RolloutBatch) -> torch.Tensor:
    """[K] Returns minus the optimal token baseline (arXiv 2602.07078), as in verl.

        B_t = (sum over the group of G_t W_t) / (sum of W_t),   W_t = sum of the gradient norms up to target t

    over the rollouts of the group that have a target t, where targets are counted within a rollout. G_t is the sum of
    the rewards from target t on. Where a rollout is the only one that is long enough, its baseline is 0. Raises
    ValueError where `RolloutBatch.gradient_norms` is missing.
    """
    if scored.gradient_norms is None:
        raise ValueError(
            "optimal_token_baseline needs RolloutBatch.gradient_norms, the norm of each target's gradient; "
            "they are missing"
        )
    groups = GroupIndex.of(scored.group)
    returns, real = _pad(rewards_to_go(scored.token_rewards(), scored.tokens, gamma=1.0), scored.tokens)
    energy = _pad(scored.gradient_norms.double(), scored.tokens)[0].cumsum(1) * real
    baseline = groups.total(returns * energy) / (groups.total(energy) + 1e-8)
    compared = groups.total(real.double()) > 1
    return (returns - baseline * compared)[real]


def remax(scored: RolloutBatch) -> torch.Tensor:
    """[K] ReMax (Li et al., arXiv 2310.10505): returns minus the reward of the task's greedy response.

    Raises ValueError where the rewards of greedy responses are missing.
    """
    if scored.baselines is None:
        raise ValueError(
            "remax needs the rewards of greedy responses (RolloutBatch.baselines); they are missing"
        )
    returns = rewards_to_go(scored.token_rewards(), scored.tokens, gamma=1.0)
    return returns - scored.expand_to_tokens(scored.baselines.double())


def gae(scored: RolloutBatch, values: torch.Tensor, *, gamma: float, lam: float) -> AdvantageEstimate:
    """Generalized advantage estimation (Schulman et al., arXiv 1506.02438, equation 16).

        A_t = delta_t + gamma lam A_(t+1),  delta_t = r_t + gamma V_(t+1) - V_t

    with V and A 0 after the last target; returns are A + V. Advantages are not whitened: PPO applies
    `whiten` to them afterwards, and returns are computed before it.

    Args:
        values: [K] the critic's estimates of the return from each target's state.
    """
    rewards, real = _pad(scored.token_rewards(), scored.tokens)
    expected, _ = _pad(values.double(), scored.tokens)
    after = torch.nn.functional.pad(expected[:, 1:], (0, 1))
    advantages = _discounted(rewards + gamma * after - expected, gamma * lam)[real]
    return AdvantageEstimate(advantages, advantages + values.double())


def _pad(values: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, longest] from [K], padded with zeros; and a mask of real values."""
    real = torch.arange(int(tokens.max()), device=tokens.device) < tokens[:, None]
    padded = values.new_zeros(real.shape)
    padded[real] = values
    return padded, real


def _discounted(values: torch.Tensor, factor: float) -> torch.Tensor:
    """[N, L] from [N, L]: y_t = x_t + factor y_(t+1)."""
    sums = torch.empty_like(values)
    following = values.new_zeros(len(values))
    for t in range(values.shape[1] - 1, -1, -1):
        following = values[:, t] + factor * following
        sums[:, t] = following
    return sums
