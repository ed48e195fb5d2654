"""`by_source`: the built-in that belongs to each task's source, for mixed data."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from strop.rewards.resolve import find
from strop.rewards.table import SOURCES

# Found when this module is loaded, so that no task pays for an import out of its time limit.
_REWARDS = {name: find(name) for name in sorted(set(SOURCES.values()))}


def by_source_reward(completion: str, answer: Any, source: str) -> float:
    """The reward of the built-in that `table.SOURCES` names for the task's source.

    Raises ValueError for a source that it does not know.
    """
    for pattern, name in SOURCES.items():
        if fnmatchcase(source, pattern):
            return float(_REWARDS[name](completion, answer))
    known = ", ".join(SOURCES)
    raise ValueError(
        f"no built-in reward is known for the source {source!r}; known are {known}. "
        "Name the reward itself instead of by_source"
    )
