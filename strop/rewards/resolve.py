"""From what a run file says to a function: a built-in's name, a dotted path, or `file.py:name`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from strop.config.imports import Named
from strop.errors import RewardError
from strop.rewards.table import BUILTINS


def find(function: str) -> Callable[..., Any]:
    """The function that a run file names. Raises RewardError when it is not there or cannot be called."""
    name = BUILTINS.get(function, function)
    return Named(name, f"reward {function!r}", "function", BUILTINS, RewardError).load()


def absolute(function: str) -> str:
    """The same name for a process that has another working directory."""
    if function in BUILTINS or ":" not in function:
        return function
    file, _, name = function.rpartition(":")
    return f"{Path(file).expanduser().resolve()}:{name}"


def default_name(function: str | Callable[..., Any]) -> str:
    """What a part of the reward is called when the run file gives it no name."""
    if isinstance(function, str):
        return function.rpartition(":")[2].rpartition(".")[2]
    inner = getattr(function, "func", function)  # functools.partial
    return getattr(inner, "__name__", type(inner).__name__).strip("<>")
