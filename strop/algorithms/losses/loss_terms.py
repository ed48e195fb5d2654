"""Result of a policy loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PolicyLossTerms:
    """Surrogate loss of K targets, and where a bound applied."""

    loss: torch.Tensor
    """[K] Losses, with gradient."""
    clipped_low: torch.Tensor
    """[K] bool: True where the ratio is below the lower bound and was clipped to it."""
    clipped_high: torch.Tensor
    """[K] bool: True where the ratio is above the upper bound and was clipped to it."""
    clipped_dual: torch.Tensor
    """[K] bool: True where the ratio is above dual_clip, with a negative advantage, and was clipped to it."""

    @classmethod
    def unbounded(cls, loss: torch.Tensor) -> PolicyLossTerms:
        """[K] losses to which no bound applies."""
        nowhere = torch.zeros_like(loss, dtype=torch.bool)
        return cls(loss, nowhere, nowhere, nowhere)
