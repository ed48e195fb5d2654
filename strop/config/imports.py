"""Objects named in a configuration: a dotted path, or `file.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from strop.errors import ConfigError


def load_object(name: str, *, what: str, built_in: Iterable[str]) -> Any:
    """Import `package.module.name` or `file.py:name`.

    `what` is the key that named it and `built_in` what else could stand there, for the message of
    the `ConfigError` that is raised where it cannot be found.
    """
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py"):
        module = _import_file(Path(file).expanduser(), what)
    else:
        path, dot, attribute = name.rpartition(".")
        if not dot:
            raise ConfigError(
                f"{what}: {name!r} is not known. Built in are {', '.join(sorted(built_in))}; "
                "your own is named by `package.module.name` or `file.py:name`."
            )
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as error:
            if error.name is None or not (path == error.name or path.startswith(error.name + ".")):
                raise
            raise ConfigError(
                f"{what}: {name!r} cannot be imported: there is no module {error.name!r}."
            ) from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{what}: {name!r} was found, but there is no {attribute!r} in it.")
    return getattr(module, attribute)


def _import_file(file: Path, what: str) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"{what}: there is no file {file}.")
    module_name = f"strop_user_{file.stem}_{abs(hash(file.resolve()))}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
