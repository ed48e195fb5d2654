"""Lookup of reward functions by a built-in's name, a dotted path, or `file.py:name`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from strop.config.user_code import ImportPath
from strop.errors import RewardError
from strop.rewards.registry import builtin_reward, builtin_rewards


def load_reward_function(function: str) -> Callable[..., Any]:
    """Load the function that a run file names. Raises RewardError if it does not exist or is not callable."""
    path = builtin_reward(function) or function
    names = () if "." in path else builtin_rewards()
    return ImportPath(path, f"reward {function!r}", "function", names, RewardError).load()


def unknown_reward(function: str) -> str | None:
    """Why there is no built-in reward of this name; None for a built-in, and for a user's function, which is not
    imported."""
    if not function.isidentifier() or builtin_reward(function):
        return None
    try:
        load_reward_function(function)
    except RewardError as error:
        return str(error)
    return None


def absolute_reference(function: str) -> str:
    """The reference with an absolute file path, valid in a process with another working directory."""
    if ":" not in function:
        return function
    file, _, name = function.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{name}"


def default_reward_name(function: str | Callable[..., Any]) -> str:
    """Name of a reward component for which the run file gives no name."""
    if isinstance(function, str):
        return function.rpartition(":")[2].rpartition(".")[2]
    inner = getattr(function, "func", function)  # functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")
