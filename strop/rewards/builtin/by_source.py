"""`by_source`: the built-in reward registered for each task's source, for mixed data."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from strop.rewards.registry import REWARD_BY_SOURCE
from strop.rewards.resolve import load_reward_function

# Loaded with this module, so that no task's time limit includes an import.
_REWARDS = {name: load_reward_function(name) for name in sorted(set(REWARD_BY_SOURCE.values()))}


def by_source_reward(completion: str, answer: Any, source: str) -> float:
    """Value of the built-in reward that `REWARD_BY_SOURCE` has for the task's source.

    Raises ValueError for an unknown source.
    """
    for pattern, name in REWARD_BY_SOURCE.items():
        if fnmatchcase(source, pattern):
            value: float = _REWARDS[name](completion, answer)
            return value
    known = ", ".join(REWARD_BY_SOURCE)
    raise ValueError(
        f"there is no built-in reward for the source {source!r}; known sources: {known}. "
        "Name the reward itself instead of by_source"
    )
