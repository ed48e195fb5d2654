"""What advantage estimators work on: rollouts, and the tokens that earned their rewards."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Scored:
    """N scored rollouts. Their K targets stand end to end, in the order of the rollouts.

    A rollout counts once, however many experiences its turns gave: its targets are those of all.
    Raises ValueError where shapes disagree or a number is NaN or infinite.
    """

    rewards: torch.Tensor
    """[N] float32"""
    group: torch.Tensor
    """[N] int64: equal ones are answers to one task."""
    tokens: torch.Tensor
    """[N] int64: targets of each rollout, one at least."""
    penalties: torch.Tensor | None = None
    """[K] float32: what each target loses of the reward, for leaving the reference."""
    baselines: torch.Tensor | None = None
    """[N] float32: the reward of the task's greedy answer."""
    earned: torch.Tensor | None = None
    """[K] float32: what of the reward was earned before a rollout's end, at the target that earned it."""

    def __post_init__(self) -> None:
        for name in ("group", "tokens", "baselines"):
            value = getattr(self, name)
            if value is not None and value.shape != self.rewards.shape:
                raise ValueError(
                    f"{name} {tuple(value.shape)} and rewards {tuple(self.rewards.shape)} differ"
                )
        if self.rewards.dim() != 1 or bool((self.tokens < 1).any()):
            raise ValueError("rewards must be [N], of rollouts that have one target at least")
        for name in ("penalties", "earned"):
            value = getattr(self, name)
            if value is not None and value.shape != (self.targets,):
                raise ValueError(f"{name} {tuple(value.shape)} are not [{self.targets}]")
        for name in ("rewards", "penalties", "baselines", "earned"):
            value = getattr(self, name)
            if value is not None and not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} must be finite; broken rollouts have none and take no part")

    @property
    def targets(self) -> int:
        """K"""
        return int(self.tokens.sum())

    def scores(self) -> torch.Tensor:
        """[N] float64: each rollout's reward less all its penalties."""
        scores = self.rewards.float().double()
        if self.penalties is None:
            return scores
        return scores.index_add(0, self._rollout(), self.penalties.double(), alpha=-1)

    def token_rewards(self) -> torch.Tensor:
        """[K] float64: what was earned on the way where it was, the rest of the reward at a rollout's last
        target, less each target's penalty."""
        rewards = torch.zeros(self.targets, dtype=torch.float64, device=self.rewards.device)
        left = self.rewards.float().double()
        if self.earned is not None:
            rewards += self.earned.double()
            left = left.index_add(0, self._rollout(), self.earned.double(), alpha=-1)
        if self.penalties is not None:
            rewards -= self.penalties.double()
        return rewards.index_add(0, self.tokens.cumsum(0) - 1, left)

    def _rollout(self) -> torch.Tensor:
        """[K] int64: the rollout of each target."""
        return self.spread(torch.arange(len(self.tokens), device=self.tokens.device))

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """[K] of [N]: each rollout's value for all its targets."""
        return values.repeat_interleave(self.tokens)
