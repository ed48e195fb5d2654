"""Reward function classes written for Trinity-RFT, as reward functions of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from strop.config.user_code import construct
from strop.errors import RewardError

TRINITY = "trinity"
"""Import name of Trinity-RFT."""


def is_reward_fn(function: Any) -> bool:
    """Whether an object is a reward function class written for Trinity, with Strop's base class or Trinity's."""
    return isinstance(function, type) and any(base.__name__ == "RewardFn" for base in function.__mro__[1:])


def construct_reward_fn(
    kind: type[Any], name: str, args: Mapping[str, Any]
) -> Callable[..., dict[str, float]]:
    """A function of completion and answer that calls an object of the class, constructed with `args`.

    Raises RewardError if the constructor does, and if the object requires further arguments.
    """
    reward_fn = construct(kind, f"reward {name!r}", RewardError, **args)
    try:
        inspect.signature(reward_fn).bind(response="", truth=None)
    except TypeError as error:
        raise RewardError(
            f"reward {name!r}: {kind.__name__} cannot be called with `response` and `truth`, which it gets here "
            f"({error}). Give further parameters a default."
        ) from error

    def score(completion: str, answer: Any = None) -> dict[str, float]:
        parts = reward_fn(response=completion, truth=answer)
        return {"score": sum(parts.values()), **parts}

    return score
