"""Functions of a Python program in a run: by import path where they have one, otherwise in this process only."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from strop import in_process
from strop.config.schema import Run
from strop.config.schema.run import RayClusterConfig, in_process_functions
from strop.config.user_code import callable_digest
from strop.errors import ConfigError, RewardError
from strop.python_rewards import PythonReward

RewardFunction = Callable[..., Any]
Rewards = RewardFunction | PythonReward | Sequence[RewardFunction | PythonReward]
"""One reward function, or several, each perhaps as a `strop.Reward` with its name and weight."""


def import_path(function: Callable[..., Any]) -> str | None:
    """`package.module.name` or `file.py:name`, by which another process finds the same function; None without one.

    A module that is a single file of the user is named by its file, because its folder may not be on the path of
    another program.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__", "builtins") or not name.isidentifier():
        return None
    if getattr(sys.modules.get(module), name, None) is not function:
        return None
    file = getattr(sys.modules[module], "__file__", None)
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if file is None or spec is None or spec.origin is None or not Path(file).is_file():
        return None
    in_packages = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return f"{Path(file).resolve()}:{name}" if "." not in module and not in_packages else f"{module}.{name}"


def run_name(function: Any, argument: str) -> str:
    """The name of a function in a run file: its import path, or a name in this process."""
    if isinstance(function, str):
        return function
    if not callable(function):
        raise ConfigError(
            f"{argument} is a {type(function).__name__}. Pass a function, or its import path as text."
        )
    if (path := import_path(function)) is not None:
        return path
    name = (
        re.sub(r"\W+", "_", getattr(function, "__name__", type(function).__name__)).strip("_") or "function"
    )
    return in_process.add(f"{name}_{callable_digest(function)[:8]}", function)


def list_functions(rewards: Rewards | None) -> list[RewardFunction | PythonReward]:
    """The rewards as a list."""
    if rewards is None:
        return []
    return list(rewards) if isinstance(rewards, Sequence) and not isinstance(rewards, str) else [rewards]


def split_rewards(rewards: Rewards | None) -> tuple[list[dict[str, Any]], tuple[PythonReward, ...]]:
    """The rewards with an import path, as entries of `reward.functions`, and the others."""
    entries: list[dict[str, Any]] = []
    others: list[PythonReward] = []
    for each in list_functions(rewards):
        reward = each if isinstance(each, PythonReward) else PythonReward(each)
        if not callable(reward.function):
            raise RewardError(
                f"reward is a {type(reward.function).__name__}. Pass a function such as f(completion, answer) -> "
                "float, a list of them, or strop.Reward(function, name=..., weight=...)."
            )
        if (path := import_path(reward.function)) is None:
            others.append(reward)
        else:
            name = {} if reward.name is None else {"name": reward.name}
            entries.append({"function": path, "weight": reward.weight, **name})
    return entries, tuple(others)


def require_one_process(run: Run) -> None:
    """Raise ConfigError where other processes than this one would load a function that only this one has."""
    engine = run.trainer.engine
    several = [
        *(["cluster: ray"] if isinstance(run.cluster, RayClusterConfig) else []),
        *([f"synchronizer: {run.synchronizer.type}"] if run.is_distributed else []),
        *([f"trainer.engine: {engine.type}"] if engine.type != "local" else []),
    ]
    names = list(in_process_functions(run))
    if several and names:
        field, name = names[0]
        raise ConfigError(
            f"{field} is the function {name}, which exists only in this Python program, and with {several[0]} other "
            "processes load it too. Move it into a file, such as mine.py, and pass it imported from there (from mine "
            f"import ...) or as text ({field}: mine.py:function); or write `trainer.engine: local` and `synchronizer: "
            "memory`."
        )
