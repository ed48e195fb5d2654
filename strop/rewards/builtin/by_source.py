"""`by_source`: the built-in reward registered for each task's source, for mixed data."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from strop.config.schema.reward import SandboxConfig
from strop.rewards.builtin.code import DEFAULT_SANDBOX, code_reward
from strop.rewards.registry import REWARD_BY_SOURCE, load_reward_function

# Loaded with this module, so that no task's time limit includes an import.
_REWARDS = {name: load_reward_function(name) for name in sorted(set(REWARD_BY_SOURCE.values()))}
_MAX_TESTS = 10
"""Number of tests of a program that count, as in verl."""


def by_source_reward(
    completion: str,
    answer: Any,
    source: str,
    *,
    sandbox: SandboxConfig = DEFAULT_SANDBOX,
    budget_seconds: float = 24.0,
) -> float:
    """Value of the built-in reward that `REWARD_BY_SOURCE` has for the task's source.

    For programs it is the fraction of the first 10 tests passed, as in verl. Raises ValueError for an unknown
    source.
    """
    for pattern, name in REWARD_BY_SOURCE.items():
        if fnmatchcase(source, pattern):
            if name == "code":
                return code_reward(
                    completion,
                    answer,
                    partial=True,
                    max_tests=_MAX_TESTS,
                    sandbox=sandbox,
                    budget_seconds=budget_seconds,
                )
            value: float = _REWARDS[name](completion, answer)
            return value
    known = ", ".join(REWARD_BY_SOURCE)
    raise ValueError(
        f"there is no built-in reward for the source {source!r}; known sources: {known}. "
        "Name the reward itself instead of by_source"
    )
