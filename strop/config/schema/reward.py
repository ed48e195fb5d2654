"""`reward`: how an answer is scored."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from strop.config.schema.base import Section


class RewardFunction(Section):
    """One part of the reward."""

    function: str
    """A built-in name, a dotted path, `file.py:name`, or `by_source` to choose by each task's source."""
    name: str | None = None
    """The part's name in metrics; the function's own when left out."""
    weight: float = 1.0
    """What its value is multiplied with in the sum."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the function."""


class Reward(Section):
    """How an answer is scored: a weighted sum of functions. `reward: gsm8k` is short for one function."""

    functions: tuple[RewardFunction, ...] = ()
    """The parts of the sum; none only where Python passes a function to `strop.train`."""
    timeout_seconds: float = Field(30.0, gt=0)
    """A function that takes longer on one answer is killed, and that rollout counts as broken."""
    workers: int = Field(0, ge=0)
    """Processes that score side by side; 0 is one per core, four at most."""
