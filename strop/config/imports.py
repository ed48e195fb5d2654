"""What a configuration names of a user's own code: a dotted path, or `file.py:name`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from strop.errors import StropError

_WAYS = "Write a built-in's name, a dotted path such as package.module.{kind}, or file.py:{kind}"


@cache
def import_library(name: str, what: str, error: type[StropError]) -> ModuleType:
    """Import a module, or a file `name.py`, once in this process. Raises `error` where that fails."""
    named = Named(name, f"{what} {name!r}", "name", (), error)
    return named.file(Path(name)) if name.endswith(".py") else named.module(name)


@dataclass(frozen=True, slots=True)
class Named:
    """One name, and what to say where nothing is found by it."""

    name: str
    what: str
    """Who names it, such as `reward 'mine.py:score'`."""
    kind: str
    """What it should be, such as `function`."""
    built_in: Collection[str]
    """What else could stand there."""
    error: type[StropError]

    def load(self) -> Callable[..., Any]:
        """Import it. Raises `error` where it is not there, fails to import, or cannot be called."""
        if ":" in self.name:
            file, _, member = self.name.rpartition(":")
            return self._member(self.file(Path(file)), member)
        if "." in self.name:
            module, _, member = self.name.rpartition(".")
            return self._member(self.module(module), member)
        close = difflib.get_close_matches(self.name, self.built_in, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise self._fault(f"{hint}The built-ins are {', '.join(self.built_in)}. {self._ways()}.")

    def module(self, module: str) -> ModuleType:
        """Import a module. Raises `error` like `load`."""
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise self._fault(f"importing {module} failed: {_last_lines(error)}") from error
            raise self._fault(
                f"there is no module {error.name!r} on Python's path. "
                f"For a file of your own write file.py:{self.kind}."
            ) from error
        except (Exception, SystemExit) as error:
            raise self._fault(f"importing {module} failed: {_last_lines(error)}") from error

    def file(self, file: Path) -> ModuleType:
        """Import a file, anew each time. Raises `error` like `load`."""
        path = file.expanduser().resolve()
        if path.suffix != ".py":
            raise self._fault(f"{str(file)!r} is not a .py file. {self._ways()}.")
        if not path.is_file():
            raise self._fault(f"there is no file {path}.")
        name = f"strop_user_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # it ends in .py
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look their module up there
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise self._fault(f"loading {path} failed: {_last_lines(error)}") from error
        return module

    def _member(self, module: ModuleType, name: str) -> Callable[..., Any]:
        where = module.__file__ or module.__name__
        if not hasattr(module, name):
            close = difflib.get_close_matches(name, vars(module), n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise self._fault(f"{where} has no {name!r}.{hint}")
        found = getattr(module, name)
        if not callable(found):
            raise self._fault(f"{name} in {where} is a {type(found).__name__}, not a {self.kind}.")
        return found

    def _fault(self, message: str) -> StropError:
        return self.error(f"{self.what}: {message}")

    def _ways(self) -> str:
        return _WAYS.format(kind=self.kind)


def _last_lines(error: BaseException) -> str:
    """The exception and where it was raised, without the frames of the import machinery."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_list(frames))}".rstrip()
