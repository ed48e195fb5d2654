"""Import of user code written for verl: `from verl.tools.base_tool import BaseTool` without verl.

While such code is imported, modules of this package stand under verl's names in `sys.modules`; afterwards they
are removed, so that nothing else finds a `verl` that is not installed. An installed verl is used itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from strop.config.user_code import ImportPath
from strop.errors import ConfigError

_HERE = __name__.rpartition(".")[0]
PROVIDED = {
    "verl.tools.base_tool": f"{_HERE}.base_tool",
    "verl.tools.schemas": f"{_HERE}.schemas",
    "verl.tools.function_tool": f"{_HERE}.function_tool",
    "verl.interactions.base": f"{_HERE}.base_interaction",
    "verl.utils.rollout_trace": f"{_HERE}.rollout_trace",
}
"""Modules of verl that Strop provides, each with the module that stands for it."""


def is_verl_installed() -> bool:
    """Whether Python finds a package `verl`; a folder without `__init__.py` is none."""
    found = find_spec("verl")
    return found is not None and found.origin is not None


def load_class(name: str, what: str) -> Callable[..., Any]:
    """Import a class written for verl: a dotted path, also below the current directory, or `file.py:Class`.

    `what` describes it in messages. Raises ConfigError if it does not exist or fails to import.
    """
    with verl_modules():
        return ImportPath(name, f"{what} {name!r}", "Class", (), ConfigError).load()


def load_file(file: str, what: str) -> ModuleType:
    """Import a file written for verl. Raises ConfigError if it does not exist or fails to import."""
    with verl_modules():
        return ImportPath(file, f"{what} {file!r}", "name", (), ConfigError).import_file(Path(file))


@contextmanager
def verl_modules() -> Iterator[None]:
    """Make `PROVIDED` importable inside the context, and modules below the current directory."""
    folder = str(Path.cwd())
    modules = {} if is_verl_installed() else _modules()
    sys.modules.update(modules)
    sys.path.append(folder)
    try:
        yield
    except ConfigError as error:
        if "No module named 'verl" not in str(error):
            raise
        raise ConfigError(
            f"{error}\nverl is not installed. Strop itself provides {', '.join(PROVIDED)}; install verl for code "
            "that imports other modules of it."
        ) from error
    finally:
        sys.path.remove(folder)
        for name in modules:
            sys.modules.pop(name, None)


def _modules() -> dict[str, ModuleType]:
    """The modules under verl's names, and the packages that contain them."""
    modules = {name: importlib.import_module(own) for name, own in PROVIDED.items()}
    for name in PROVIDED:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            package = ".".join(parts[:depth])
            modules.setdefault(package, ModuleType(package)).__dict__["__path__"] = []
    for name in list(modules):
        above, _, last = name.rpartition(".")
        if above:
            setattr(modules[above], last, modules[name])
    return modules
