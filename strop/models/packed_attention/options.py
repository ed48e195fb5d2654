"""Options of a model's attention, for every kernel."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Options of a model's attention."""

    scale: float
    """Factor of the scores."""
    window: int | None = None
    """Number of last tokens that a query sees, itself included; None for all."""
    softcap: float | None = None
    """Limit in softcap * tanh(score / softcap), as in Gemma 2; None for none."""
