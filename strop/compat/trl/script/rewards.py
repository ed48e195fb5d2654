"""Reward functions and reward models of a script: references to files where workers can import them, else objects."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strop.compat.trl.script.models import RecordedModel
from strop.compat.trl.script.session import current_session
from strop.python_rewards import PythonReward


@dataclass(frozen=True, slots=True)
class ScriptRewards:
    """The parts of a reward, each with its weight."""

    functions: tuple[dict[str, Any], ...]
    """Entries of `reward.functions`."""
    models: tuple[dict[str, Any], ...]
    """Entries of `reward.models`."""
    objects: tuple[PythonReward, ...]
    """Functions that exist only in the script."""


def read_rewards(reward_funcs: Any, weights: Sequence[float] | None) -> ScriptRewards:
    """The rewards of a trainer. Raises ConfigError for weights of another number, and for an object that is neither a
    function nor a model."""
    session = current_session()
    parts = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    parts = [part for part in parts if part is not None]
    if not parts:
        raise session.error(
            "reward_funcs is missing; write a function, the name of a reward model, or a list of them."
        )
    if weights is None:
        weights = [1.0] * len(parts)
    if len(weights) != len(parts):
        raise session.error(
            f"reward_weights has {len(weights)} numbers for {len(parts)} rewards; write one for each of reward_funcs."
        )
    functions: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    objects: list[PythonReward] = []
    for part, name, weight in zip(parts, _names(parts), map(float, weights), strict=True):
        if isinstance(part, str | Path):
            models.append({"path": str(part), "name": name, "weight": weight})
        elif isinstance(part, RecordedModel) or not callable(part) or hasattr(part, "get_input_embeddings"):
            raise session.error(
                f"reward_funcs has a {type(part).__name__}; write a function, or the name of a reward model as a text."
            )
        elif reference := _reference(part):
            named = {"name": name} if reference.rpartition(":")[2].rpartition(".")[2] != name else {}
            functions.append({"function": reference, **named, "weight": weight})
        else:
            objects.append(PythonReward(part, name, weight))
    return ScriptRewards(tuple(functions), tuple(models), tuple(objects))


def _names(parts: Sequence[Any]) -> Iterator[str]:
    """Names of reward components; those of the same name are numbered."""
    used: set[str] = set()
    for part in parts:
        if isinstance(part, str | Path):
            name = str(part).rstrip("/").rpartition("/")[2]
        else:
            inner = getattr(part, "func", part)  # functools.partial
            name = str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")
        unique, number = name, 1
        while unique in used:
            number += 1
            unique = f"{name}_{number}"
        used.add(unique)
        yield unique


def _reference(function: Callable[..., Any]) -> str | None:
    """`file.py:name` or a dotted path of a function that a module defines; None for one that exists only as an object,
    such as a function of the script, a closure or a method."""
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or not inspect.isfunction(function):
        return None
    if not name.isidentifier() or getattr(module, name, None) is not function:
        return None
    if getattr(module, "strop_reference", None):
        return f"{module.strop_reference}.{name}"
    file = getattr(module, "__file__", None)
    if "." in module.__name__ or file is None or Path(file).suffix != ".py" or "site-packages" in file:
        return f"{module.__name__}.{name}"
    relative = os.path.relpath(file)
    return f"{file if relative.startswith('..') else relative}:{name}"
