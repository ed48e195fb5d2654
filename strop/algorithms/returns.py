"""Advantages of single tokens: what came after each, less what could be expected.

Ragged: the K targets of N rollouts stand end to end, and `tokens` [N] says how many each has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strop.algorithms.groups import Groups
from strop.algorithms.scored import Scored


@dataclass(frozen=True, slots=True)
class Estimate:
    """What generalised advantage estimation gives."""

    advantages: torch.Tensor
    """[K]"""
    returns: torch.Tensor
    """[K] What the critic should have said."""


def rewards_to_go(rewards: torch.Tensor, tokens: torch.Tensor, *, gamma: float) -> torch.Tensor:
    """[K] of [K]: each target's reward and those after it in the same rollout, discounted by `gamma`."""
    padded, real = _pad(rewards, tokens)
    return _discounted(padded, gamma)[real]


def whiten(values: torch.Tensor, epsilon: float = 1e-8) -> torch.Tensor:
    """[K] of [K] float64: mean 0 and standard deviation 1 over all of them.

        (x - mean) / sqrt(variance + epsilon)

    with the unbiased variance (divided by K - 1), as in the code of PPO that the field goes back
    to (OpenAI's lm-human-preferences, and so TRL, verl, Trinity-RFT). A single value becomes 0.
    """
    centred = values - values.mean()
    variance = centred.square().sum() / max(len(values) - 1, 1)
    return centred * torch.rsqrt(variance + epsilon)


def reinforce_plus_plus(scored: Scored, *, gamma: float) -> torch.Tensor:
    """[K] REINFORCE++ (Hu et al., arXiv 2501.03262): whitened returns.

    A target's return is the reward at the end and what it and those after it lose for leaving the
    reference. Mean and standard deviation are those of all targets of the step.
    """
    return whiten(rewards_to_go(scored.token_rewards(), scored.tokens, gamma=gamma))


def reinforce_plus_plus_baseline(scored: Scored) -> torch.Tensor:
    """[K] REINFORCE++ with a baseline (arXiv 2501.03262): whitened (r_i - mean(group)).

    Mean and standard deviation are those of all targets of the step, so that long answers count
    for more. A rollout alone in its group has 0 before whitening.
    """
    scores = scored.scores()
    return whiten(scored.spread(scores - Groups.of(scored.group).mean(scores)))


def remax(scored: Scored) -> torch.Tensor:
    """[K] ReMax (Li et al., arXiv 2310.10505): returns less the reward of the task's greedy answer.

    Raises ValueError where the greedy answers' rewards are missing.
    """
    if scored.baselines is None:
        raise ValueError("remax needs the rewards of greedy answers; there are none")
    returns = rewards_to_go(scored.token_rewards(), scored.tokens, gamma=1.0)
    return returns - scored.spread(scored.baselines.double())


def gae(scored: Scored, values: torch.Tensor, *, gamma: float, lam: float) -> Estimate:
    """Generalised advantage estimation (Schulman et al., arXiv 1506.02438, equation 16).

        A_t = delta_t + gamma lam A_(t+1),  delta_t = r_t + gamma V_(t+1) - V_t

    with V and A 0 after the last target; returns are A + V. Advantages are not whitened: PPO
    does that with `whiten`, and returns are taken before it.

    Args:
        values: [K] the critic's, of what each target's state will still bring.
    """
    rewards, real = _pad(scored.token_rewards(), scored.tokens)
    expected, _ = _pad(values.double(), scored.tokens)
    after = torch.nn.functional.pad(expected[:, 1:], (0, 1))
    advantages = _discounted(rewards + gamma * after - expected, gamma * lam)[real]
    return Estimate(advantages, advantages + values.double())


def _pad(values: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, longest] of [K], with zeros behind; and where it is real."""
    real = torch.arange(int(tokens.max()), device=tokens.device) < tokens[:, None]
    padded = values.new_zeros(real.shape)
    padded[real] = values
    return padded, real


def _discounted(values: torch.Tensor, factor: float) -> torch.Tensor:
    """[N, L] of [N, L]: y_t = x_t + factor y_(t+1)."""
    sums = torch.empty_like(values)
    following = values.new_zeros(len(values))
    for t in range(values.shape[1] - 1, -1, -1):
        following = values[:, t] + factor * following
        sums[:, t] = following
    return sums
