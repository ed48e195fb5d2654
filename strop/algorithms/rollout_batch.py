"""Input of advantage estimators: rollouts with their rewards and numbers of target tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """N scored rollouts with K targets in all; targets are concatenated in the order of the rollouts.

    A rollout counts once, however many experiences its turns became: its targets are those of all of them.
    Raises ValueError where shapes differ or a number is NaN or infinite.
    """

    rewards: torch.Tensor
    """[N] float32"""
    group: torch.Tensor
    """[N] int64: group of each rollout; equal numbers are rollouts of one task."""
    tokens: torch.Tensor
    """[N] int64: number of targets of each rollout, at least 1."""
    kl_penalties: torch.Tensor | None = None
    """[K] float32: KL penalty of each target, subtracted from the reward."""
    baselines: torch.Tensor | None = None
    """[N] float32: reward of the task's greedy response."""
    reward_parts: torch.Tensor | None = None
    """[N, P] float32: the parts of the reward that the algorithm names; NaN for a rollout without the part."""
    gradient_norms: torch.Tensor | None = None
    """[K] float32: expected squared norm of the gradient of each target's log-prob, up to a constant."""
    values: torch.Tensor | None = None
    """[K] float32: return that a critic predicts before each target."""
    process_rewards: torch.Tensor | None = None
    """[K] float32: reward of each target by a process reward model."""
    intermediate_rewards: torch.Tensor | None = None
    """[K] float32: part of the reward that was earned before the rollout's end, at the target that earned it."""

    turns: torch.Tensor | None = None
    """[K] int64: number of each target's turn among the turns of the step, from 0."""
    turn_states: torch.Tensor | None = None
    """[M] int64: state of the environment before each turn; equal numbers are equal states."""
    sequences: torch.Tensor | None = None
    """[N] int64: number of training sequences of each rollout."""

    def __post_init__(self) -> None:
        for name in ("group", "tokens", "baselines", "sequences"):
            value = getattr(self, name)
            if value is not None and value.shape != self.rewards.shape:
                raise ValueError(
                    f"{name} {tuple(value.shape)} and rewards {tuple(self.rewards.shape)} differ"
                )
        if self.rewards.dim() != 1 or bool((self.tokens < 1).any()):
            raise ValueError("rewards must be [N], and each rollout must have at least one target")
        for name in ("kl_penalties", "gradient_norms", "values", "process_rewards", "intermediate_rewards"):
            value = getattr(self, name)
            if value is not None and value.shape != (self.num_targets,):
                raise ValueError(f"{name} {tuple(value.shape)} must be [{self.num_targets}]")
        if self.turns is not None and self.turns.shape != (self.num_targets,):
            raise ValueError(f"turns {tuple(self.turns.shape)} must be [{self.num_targets}]")
        if self.reward_parts is not None and len(self.reward_parts) != len(self.rewards):
            raise ValueError(
                f"reward_parts {tuple(self.reward_parts.shape)} must have {len(self.rewards)} rows"
            )
        for name in (
            "rewards",
            "kl_penalties",
            "baselines",
            "gradient_norms",
            "process_rewards",
            "intermediate_rewards",
        ):
            value = getattr(self, name)
            if value is not None and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} must be finite; leave failed rollouts out of the batch")
        if self.reward_parts is not None and bool(self.reward_parts.isinf().any()):
            raise ValueError("reward_parts must be finite, or NaN for a part that a rollout does not have")

    @property
    def num_targets(self) -> int:
        """K"""
        return int(self.tokens.sum())

    def penalized_rewards(self) -> torch.Tensor:
        """[N] float64: each rollout's reward minus all its penalties."""
        scores = self.rewards.float().double()
        if self.kl_penalties is None:
            return scores
        return scores.index_add(0, self._rollout(), self.kl_penalties.double(), alpha=-1)

    def token_rewards(self) -> torch.Tensor:
        """[K] float64: intermediate rewards at their targets and the rest of the reward at a rollout's last
        target, minus each target's penalty."""
        rewards = torch.zeros(self.num_targets, dtype=torch.float64, device=self.rewards.device)
        remaining = self.rewards.float().double()
        if self.intermediate_rewards is not None:
            rewards += self.intermediate_rewards.double()
            remaining = remaining.index_add(0, self._rollout(), self.intermediate_rewards.double(), alpha=-1)
        if self.kl_penalties is not None:
            rewards -= self.kl_penalties.double()
        return rewards.index_add(0, self.tokens.cumsum(0) - 1, remaining)

    def _rollout(self) -> torch.Tensor:
        """[K] int64: number of each target's rollout."""
        return self.expand_to_tokens(torch.arange(len(self.tokens), device=self.tokens.device))

    def expand_to_tokens(self, values: torch.Tensor) -> torch.Tensor:
        """[K] from [N]: each rollout's value, repeated for all its targets."""
        return values.repeat_interleave(self.tokens)
