"""From what a run file says to a function: a built-in's name, a dotted path, or `file.py:name`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from strop.errors import RewardError
from strop.rewards.table import BUILTINS

_WAYS = "Write a built-in's name, a dotted path such as package.module.function, or file.py:function"


def find(function: str) -> Callable[..., Any]:
    """The function that a run file names. Raises RewardError when it is not there or cannot be called."""
    if function in BUILTINS:
        module, _, name = BUILTINS[function].rpartition(".")
        return _member(importlib.import_module(module), name, function)
    if ":" in function:
        file, _, name = function.rpartition(":")
        return _member(_load_file(Path(file), function), name, function)
    if "." in function:
        module, _, name = function.rpartition(".")
        return _member(_import(module, function), name, function)
    close = difflib.get_close_matches(function, BUILTINS, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise RewardError(f"reward {function!r}: {hint}The built-ins are {', '.join(BUILTINS)}. {_WAYS}.")


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


def _import(module: str, function: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise RewardError(
                f"reward {function!r}: importing {module} failed: {_last_lines(error)}"
            ) from error
        raise RewardError(
            f"reward {function!r}: there is no module {error.name!r} on Python's path. "
            "For a file of your own write file.py:function."
        ) from error
    except (Exception, SystemExit) as error:
        raise RewardError(f"reward {function!r}: importing {module} failed: {_last_lines(error)}") from error


def _load_file(file: Path, function: str) -> ModuleType:
    path = file.expanduser().resolve()
    if path.suffix != ".py":
        raise RewardError(f"reward {function!r}: {str(file)!r} is not a .py file. {_WAYS}.")
    if not path.is_file():
        raise RewardError(f"reward {function!r}: there is no file {path}.")
    name = f"strop_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # it ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise RewardError(f"reward {function!r}: loading {path} failed: {_last_lines(error)}") from error
    return module


def _member(module: ModuleType, name: str, function: str) -> Callable[..., Any]:
    where = module.__file__ or module.__name__
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, vars(module), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise RewardError(f"reward {function!r}: {where} has no {name!r}.{hint}")
    found = getattr(module, name)
    if not callable(found):
        raise RewardError(
            f"reward {function!r}: {name} in {where} is a {type(found).__name__}, not a function."
        )
    return found


def _last_lines(error: BaseException) -> str:
    """The exception and where it was raised, without the frames of the import machinery."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{type(error).__name__}: {error}\n{''.join(traceback.format_list(frames))}".rstrip()
