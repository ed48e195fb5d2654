"""What a workflow makes of its conversation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from strop.types import Turn


class OutOfRoom(Exception):
    """The conversation has no room for another reply: it ends here, cut short."""


class BadOutcome(ValueError):
    """What a workflow returned is nothing that can be learned from."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a workflow may return; all of it may be left out.

    A number is short for `Outcome(reward=...)`, and text for `Outcome(text=...)`.
    """

    reward: float | None = None
    """What the workflow itself gives; the parts under `reward` in the run file are added to it."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Of that, for the metrics."""
    turn_rewards: Sequence[float] | None = None
    """What each turn earned; without a `reward`, their sum is the reward."""
    text: str | None = None
    """The answer to score, where it is not the last reply."""
    turns: Sequence[Turn] | None = None
    """What is learned from, where that is not every call of the model in its order."""


def to_outcome(returned: Any) -> Outcome:
    """Raises `BadOutcome` for anything that is no outcome."""
    if returned is None:
        return Outcome()
    if isinstance(returned, str):
        return Outcome(text=returned)
    if isinstance(returned, Real):
        return _checked(Outcome(reward=float(returned)))
    if not isinstance(returned, Outcome):
        raise BadOutcome(
            f"the workflow returned a {type(returned).__name__}. It may return nothing, a number (the "
            "reward), text (the answer to score), or a strop.workflows.Outcome"
        )
    return _checked(returned)


def _checked(outcome: Outcome) -> Outcome:
    rewards = [*outcome.parts.values(), *(outcome.turn_rewards or ())]
    if outcome.reward is not None:
        rewards.append(outcome.reward)
    for value in rewards:
        if not isinstance(value, Real) or not math.isfinite(value):
            raise BadOutcome(f"the workflow gave the reward {value!r}; a reward is a finite number")
    turns = outcome.turns
    if turns is not None and not all(isinstance(turn, Turn) for turn in turns):
        raise BadOutcome("the workflow's `turns` are not all strop.types.Turn")
    return outcome
