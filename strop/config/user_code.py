"""Import of user code by name: a dotted path, or `file.py:name`."""

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

_ACCEPTED_FORMS = "Write a built-in's name, a dotted path such as package.module.{kind}, or file.py:{kind}"


@cache
def import_user_module(name: str, what: str, error: type[StropError]) -> ModuleType:
    """Import a module, or a file `name.py`, once per process. Raises `error` if that fails."""
    named = ImportPath(name, f"{what} {name!r}", "name", (), error)
    return named.import_file(Path(name)) if name.endswith(".py") else named.import_module(name)


def construct(make: Callable[..., Any], what: str, error: type[StropError], /, **options: Any) -> Any:
    """Call a user's class. Raises `error` where the constructor raises anything but an error of Strop's."""
    try:
        return make(**options)
    except StropError:
        raise
    except Exception as raised:
        name = getattr(make, "__name__", str(make))
        raise error(f"{what}: {name}(...) raised {type(raised).__name__}: {raised}.") from raised


@dataclass(frozen=True, slots=True)
class ImportPath:
    """Name of a function or class in user code, with the texts for error messages."""

    name: str
    description: str
    """Description for messages, such as `reward 'mine.py:score'`."""
    kind: str
    """Expected kind of object, such as `function`."""
    builtins: Collection[str]
    """Names of the built-ins, for messages."""
    error: type[StropError]

    def load(self) -> Callable[..., Any]:
        """Import the object. Raises `error` if it does not exist, fails to import, or is not callable."""
        if ":" in self.name:
            file, _, member = self.name.rpartition(":")
            return self._member(self.import_file(Path(file)), member)
        if "." in self.name:
            module, _, member = self.name.rpartition(".")
            return self._member(self.import_module(module), member)
        close = difflib.get_close_matches(self.name, self.builtins, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise self._fault(f"{hint}The built-ins are {', '.join(self.builtins)}. {self._accepted_forms()}.")

    def import_module(self, module: str) -> ModuleType:
        """Import a module. Raises `error` like `load`."""
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise self._fault(f"importing {module} failed: {_last_lines(error)}") from error
            raise self._fault(
                f"there is no module {error.name!r} on Python's path. "
                f"For your own file write file.py:{self.kind}."
            ) from error
        except (Exception, SystemExit) as error:
            raise self._fault(f"importing {module} failed: {_last_lines(error)}") from error

    def import_file(self, file: Path) -> ModuleType:
        """Import a file; each call executes it again. Raises `error` like `load`."""
        path = file.expanduser().resolve()
        if path.suffix != ".py":
            raise self._fault(f"{str(file)!r} is not a .py file. {self._accepted_forms()}.")
        if not path.is_file():
            raise self._fault(f"there is no file {path}.")
        name = f"strop_user_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # The suffix is .py.
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickle look up modules here
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
        return self.error(f"{self.description}: {message}")

    def _accepted_forms(self) -> str:
        return _ACCEPTED_FORMS.format(kind=self.kind)


def _last_lines(error: BaseException) -> str:
    """Return the exception and its last frame, without the frames of the import system."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_list(frames))}".rstrip()
