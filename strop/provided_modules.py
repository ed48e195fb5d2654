"""Modules of another framework that user files import, provided by Strop where the framework is not installed.

A file written for such a framework begins with `from framework.module import Name`. The part of Strop that runs
these files calls `provide_modules` with the names that it implements, before it imports the file. An installed
framework takes precedence, and nothing is provided for it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any


def provide_modules(package: str, distribution: str, modules: Mapping[str, Mapping[str, Any]]) -> None:
    """Let `import` find modules of `package`, for the rest of the process.

    Args:
        package: top-level package, such as `verl`.
        distribution: name under which the framework can be installed, for messages.
        modules: names that each module has; their parent packages are added. A later call adds to an earlier one.
    """
    finder = _installed_finder()
    finder.pending.pop(package, None)
    finder.add(package, distribution, modules)


def provide_on_import(package: str, provide: Callable[[], None]) -> None:
    """Call `provide`, which calls `provide_modules`, when a file imports the package; nothing is loaded before."""
    finder = _installed_finder()
    if package not in finder.packages:
        finder.pending.setdefault(package, provide)


def provide_folder(package: str, folder: Path) -> None:
    """Let `import` find the files of a folder as modules of a provided package, such as `trinity.plugins`."""
    path: list[str] = importlib.import_module(package).__path__  # type: ignore[assignment]
    if str(folder) not in path:
        path.append(str(folder))


def _installed_finder() -> _Finder:
    for found in sys.meta_path:
        if isinstance(found, _Finder):
            return found
    finder = _Finder()
    sys.meta_path.append(finder)  # at the end: an installed framework is found first
    return finder


class _Finder(MetaPathFinder, Loader):
    """Finds and creates the provided modules."""

    def __init__(self) -> None:
        self.packages: dict[str, str] = {}
        """Name for installation, by provided top-level package."""
        self._modules: dict[str, dict[str, Any]] = {}
        self.pending: dict[str, Callable[[], None]] = {}
        """Functions that provide a package when it is imported."""

    def add(self, package: str, distribution: str, modules: Mapping[str, Mapping[str, Any]]) -> None:
        self.packages[package] = distribution
        for name, members in modules.items():
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                self._modules.setdefault(".".join(parts[:end]), {})
            self._modules[name].update(members)
            imported = sys.modules.get(name)
            if imported is not None and imported.__loader__ is self:
                vars(imported).update(members)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        if package in self.pending:
            self.pending.pop(package)()
        if package not in self.packages:
            return None
        if path is not None and getattr(sys.modules[package], "__loader__", None) is not self:
            return None  # a module that the installed framework lacks
        if fullname not in self._modules:
            raise ModuleNotFoundError(
                f"Strop has no module {fullname}; it has {', '.join(self._names_below(package))}. "
                f"{self._advice(package)}",
                name=fullname,
            )
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        below = f"{spec.name}."
        submodules = frozenset(name.removeprefix(below) for name in self._modules if name.startswith(below))
        return _ProvidedModule(spec.name, submodules, self._advice(spec.name.partition(".")[0]))

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._modules[module.__name__])

    def _names_below(self, package: str) -> list[str]:
        return [name for name, members in self._modules.items() if members and name.startswith(f"{package}.")]

    def _advice(self, package: str) -> str:
        return f"For the rest of {package}, install the package {self.packages[package]}."


class _ProvidedModule(ModuleType):
    """Module whose error for a missing name says which names there are."""

    def __init__(self, name: str, submodules: frozenset[str], advice: str) -> None:
        super().__init__(name)
        self._strop_submodules = submodules
        self._strop_advice = advice

    def __getattr__(self, name: str) -> Any:
        names = [each for each in vars(self) if not each.startswith("_")]
        if name.startswith("_") or name in self._strop_submodules or not names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise ImportError(
            f"Strop's {self.__name__} has no {name!r}; it has {', '.join(names)}. {self._strop_advice}"
        )
