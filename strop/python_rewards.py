"""Reward functions that are Python objects, with their names and weights in the sum of a run's rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PythonReward:
    """A reward function that no configuration names, because it exists only in a Python program."""

    function: Callable[..., Any]
    name: str | None = None
    """Name of the reward component; None for the name of the function."""
    weight: float = 1.0


PythonRewards = Callable[..., Any] | Sequence[PythonReward]
"""One function with weight 1, or several functions with their names and weights."""


def list_rewards(rewards: PythonRewards | None) -> tuple[PythonReward, ...]:
    """The functions, with their names and weights."""
    if rewards is None:
        return ()
    return tuple(rewards) if isinstance(rewards, Sequence) else (PythonReward(rewards),)
