"""Stand-ins for packages with compiled code that SGLang imports and does not call on the CPU.

`sgl_kernel` has CUDA kernels; `torchaudio` has no build for every CPU build of torch. The folder is
on the path of the tests' SGLang environment only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn


class Unavailable:
    """Attribute of a stand-in: it may be named and passed on, and raises where it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Unavailable:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unavailable(f"{self._name}.{name}")

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        raise RuntimeError(f"{self._name} is a stand-in of the tests without an implementation")


class _SubmoduleFinder(MetaPathFinder, Loader):
    """Makes every module of a stand-in importable."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module of this package."""
        return ModuleSpec(fullname, self) if fullname.startswith(f"{self._package}.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module, itself a package."""
        module = ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = attributes_of(spec.name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def attributes_of(module: str) -> Callable[[str], Unavailable]:
    """The function `__getattr__` of a stand-in."""

    def get(name: str) -> Unavailable:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unavailable(f"{module}.{name}")

    return get


def make_stub(package: str) -> Callable[[str], Unavailable]:
    """Make every module of a package importable; returns the package's `__getattr__`."""
    sys.meta_path.append(_SubmoduleFinder(package))
    return attributes_of(package)
