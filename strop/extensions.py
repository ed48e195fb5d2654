"""Names that packages for other tools add to runs: rewards, workflows, and base classes of a user's own classes.

A name of a tool begins with the name of its package: `verl_math`, `trinity`. A package is therefore imported only by a
run that names something of it, and where all names are listed. What it adds are dotted paths, imported when they are
used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from strop.provided_modules import provide_on_import

EXTENSIONS: Mapping[str, str] = {
    "verl": "strop.compat.verl.extension.EXTENSION",
    "trinity": "strop.compat.trinity.extension.EXTENSION",
}
"""Import name of a tool -> dotted path of its `Extension`."""


@dataclass(frozen=True, slots=True)
class Extension:
    """Names that one package adds."""

    rewards: Mapping[str, str] = field(default_factory=dict)
    """Name in a run file -> function."""
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Reward that chooses by the task's source -> the sources that it knows (`*` matches any suffix), each with the
    name of its reward."""
    own_reward: str = ""
    """Keys of its configuration that name a reward function of the user."""
    sandboxed_rewards: frozenset[str] = frozenset()
    """Rewards that run programs: they get the arguments `sandbox` and `budget_seconds`."""
    reward_classes: Mapping[str, str] = field(default_factory=dict)
    """Name of a class of the tool -> function of a class derived from it, its name and its arguments, which returns a
    reward function."""
    workflows: Mapping[str, str] = field(default_factory=dict)
    """Name in a run file -> workflow."""
    workflow_classes: Mapping[str, str] = field(default_factory=dict)
    """Name of a class of the tool -> workflow of this extension that runs the classes derived from it; its arguments
    are `workflow`, the class's name, and `args`."""
    modules: str = ""
    """Function that lets a user's files import the tool's modules where the tool is not installed."""
    tool_files: str = ""
    """Module that reads files of tools and of interactions for the workflow `tools`."""


def imported(path: str) -> Any:
    """The object of a dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@cache
def extension(tool: str) -> Extension:
    """The extension of a tool in `EXTENSIONS`."""
    found: Extension = imported(EXTENSIONS[tool])
    return found


def extension_of(name: str) -> Extension | None:
    """The extension that a name may belong to; None for a name of the core or of a user."""
    tool = name.partition("_")[0]
    return extension(tool) if tool in EXTENSIONS else None


def all_extensions() -> Iterator[Extension]:
    """All extensions, for lists of names."""
    return map(extension, EXTENSIONS)


def tool_class(kind: Any, classes: Callable[[Extension], Mapping[str, str]]) -> str | None:
    """The value of an extension for the class of its tool that a user's class derives from; None for other objects.

    A class of a tool stands in the tool itself, or in the package that provides it here.
    """
    for base in kind.__mro__[1:] if isinstance(kind, type) else ():
        for tool, path in EXTENSIONS.items():
            if base.__module__.startswith((f"{tool}.", path.removesuffix("extension.EXTENSION"))):
                found = classes(extension(tool)).get(base.__name__)
                if found is not None:
                    return found
    return None


def provide_tool_modules() -> None:
    """Let a user's files import the modules that extensions provide, which are loaded when a file imports them."""
    for tool in EXTENSIONS:
        provide_on_import(tool, partial(_provide, tool))


def _provide(tool: str) -> None:
    path = extension(tool).modules
    if path:
        imported(path)()
