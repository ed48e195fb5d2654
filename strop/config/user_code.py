"""User code: its import by name, a dotted path or `file.py:name`, and digests of it without comments and layout.

A digest covers the named definition, the definitions and imports of its file that it reaches by name, and the same of
the user's modules among these imports; and all statements of such a file that define nothing, because importing it
executes them. The standard library and installed packages do not count. Names that are computed (`getattr`,
`importlib`) are not followed.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from strop import in_process
from strop.config.paths import expand_user
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
            if module is in_process:
                raise self._fault(in_process.missing(name))
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


_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NOT_OWN = re.compile(r"[\\/](site|dist)-packages[\\/]")
_PACKAGE = str(Path(__file__).parent.parent)
_MAX_ITEMS = 10_000
"""Largest container whose items count; of a larger one, which is data, the length does."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def code_digest(name: str) -> str:
    """Digest of the code that `file.py:name`, `file.py` or `package.module.name` names, which is not imported.

    Empty for a built-in's name and for an installed package. A file that cannot be read or parsed has a digest too; its
    import says what is wrong.
    """
    if name.endswith(".py"):
        file, member = expand_user(name), None
    elif ".py:" in name:
        path, _, member = name.rpartition(":")
        file = expand_user(path)
    else:
        module, _, member = name.rpartition(".")
        found = _own_module(module, None)
        if found is None:
            return ""
        file = found
    walk = _Walk()
    walk.add_file(file, member)
    return walk.hexdigest()


def callable_digest(function: Callable[..., Any]) -> str:
    """Digest of a function, class or callable object of this process: its source, defaults and closure, and the same of
    what it uses of the user's code. Where there is no source, as in an interactive interpreter, bytecode counts."""
    walk = _Walk()
    walk.add_object(function)
    return walk.hexdigest()


class _Walk:
    """Collects the code that a definition reaches, each part once."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._seen: set[Any] = set()
        self._kept: list[Any] = []
        """Objects seen by `id`, which must not be reused."""
        self._open: set[int] = set()
        """Containers around the present value, by `id`; a container may contain itself."""

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def _add(self, text: str) -> None:
        self._digest.update(len(text).to_bytes(8, "little") + text.encode("utf-8", "surrogatepass"))

    def add_file(self, file: Path, member: str | None) -> None:
        """Add what `member` of a file reaches; None or a name that the file does not define: all of it."""
        if (file.resolve(), None) in self._seen or (file.resolve(), member) in self._seen:
            return
        self._seen.add((file.resolve(), member))
        try:
            module = ast.parse(file.read_bytes())
        except OSError as error:
            self._add(f"unreadable: {error.strerror}")
            return
        except (SyntaxError, ValueError, RecursionError) as error:
            self._add(f"unreadable: {error}")
            return
        defined: dict[str, list[ast.stmt]] = {}
        always = []
        for statement in module.body:
            names = list(_bound_names(statement))
            for bound in names:
                defined.setdefault(bound, []).append(statement)
            if not names and not _is_main_block(statement):
                always.append(statement)
        waiting = always + defined.get(member or "", module.body)
        reached: set[ast.stmt] = set()
        while waiting:
            statement = waiting.pop()
            if statement in reached:
                continue
            reached.add(statement)
            for used in _used_names(statement):
                waiting += defined.get(used, ())
        for statement in module.body:
            if statement in reached:
                self._add(ast.unparse(statement))
                self._add_imports(statement, file)

    def _add_imports(self, statement: ast.stmt, file: Path) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if (found := _own_module(alias.name, file)) is not None:
                        self.add_file(found, None)
            elif isinstance(node, ast.ImportFrom):
                above = "." * node.level + (node.module or "")
                for alias in node.names:
                    inner = _own_module(f"{above}{'' if above.endswith('.') else '.'}{alias.name}", file)
                    if inner is not None:
                        self.add_file(inner, None)
                    elif (found := _own_module(above, file)) is not None:
                        self.add_file(found, None if alias.name == "*" else alias.name)

    def add_object(self, value: Any) -> None:
        """Add a value that code of this process uses."""
        if hasattr(value, "__wrapped__"):  # decorated, also by functools.cache
            self.add_object(value.__wrapped__)
        if isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.add_object(part)
        elif isinstance(value, MethodType):
            self.add_object(value.__func__)
            self.add_object(value.__self__)
        elif isinstance(value, ModuleType):
            file = getattr(value, "__file__", None)
            if file is not None and _is_own(file):
                self.add_file(Path(file), None)
            else:
                self._add(f"module {value.__name__}")
        elif isinstance(value, FunctionType | type):
            self._add_definition(value)
        elif isinstance(value, str | bytes | int | float | complex | bool | None):
            self._add(f"{type(value).__name__} {value!r}")
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            self._add_container(value)
        elif self._is_new(value):
            self._add(f"object {type(value).__qualname__}")
            self._add_definition(type(value))
            if _is_own_definition(type(value)):
                self._add_container(getattr(value, "__dict__", {}))

    def _add_container(self, value: Any) -> None:
        self._add(f"{type(value).__name__} {len(value)}")
        if len(value) > _MAX_ITEMS or id(value) in self._open:
            return
        self._open.add(id(value))
        if isinstance(value, set | frozenset):
            self._add(str(sorted(map(repr, value))))
        else:
            for item in value.items() if isinstance(value, Mapping) else value:
                for each in item if isinstance(value, Mapping) else (item,):
                    self.add_object(each)
        self._open.remove(id(value))

    def _is_new(self, value: Any) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._kept.append(value)
        return True

    def _add_definition(self, value: Any) -> None:
        """A function or class, with what it uses by name; only the name of one that is not the user's."""
        if not _is_own_definition(value):
            self._add(f"{value.__module__}.{value.__qualname__}")
            return
        if not self._is_new(value):
            return
        functions = [value] if isinstance(value, FunctionType) else list(_functions_of(value))
        if (source := _source(value)) is not None:
            self._add(source)
        for function in functions:
            if source is None:
                self._add_code(function.__code__)
            self.add_object(function.__defaults__)
            self.add_object(function.__kwdefaults__)
            for cell in function.__closure__ or ():
                self.add_object(cell.cell_contents if _is_filled(cell) else None)
            for name in sorted(_code_names(function.__code__)):
                if name in function.__globals__:
                    self._add(name)
                    self.add_object(function.__globals__[name])
        for base in value.__bases__ if isinstance(value, type) else ():
            self.add_object(base)

    def _add_code(self, code: CodeType) -> None:
        self._add(code.co_code.hex())
        self._add(str((code.co_names, code.co_varnames, code.co_freevars)))
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._add_code(constant)
            else:
                self.add_object(constant)


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement at the top of a module defines."""
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                yield node.id
            elif isinstance(node, _DEFINITIONS):
                yield node.name
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    yield alias.asname or alias.name.partition(".")[0]


def _used_names(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement may use; `*` stands for imports of everything, any of which may define a name."""
    yield "*"
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield node.id


def _is_main_block(statement: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__"`, which an import does not execute."""
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _own_module(name: str, file: Path | None) -> Path | None:
    """File of a module of the user's, imported by `file`; None for any other module."""
    level = len(name) - len(name.lstrip("."))
    parts = [part for part in name.lstrip(".").split(".") if part]
    if level and file is not None:
        return _file_in(file.parents[level - 1], parts)
    if not parts:
        return None
    if file is not None and (beside := _file_in(file.parent, parts)) is not None:
        return beside
    spec, places = None, None
    for part in parts:
        try:
            spec = PathFinder.find_spec(part, places)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    if spec is None or spec.origin is None or not _is_own(spec.origin):
        return None
    return Path(spec.origin)


def _file_in(folder: Path, parts: list[str]) -> Path | None:
    for file in (folder.joinpath(*parts, "__init__.py"), folder.joinpath(*parts).with_suffix(".py")):
        if parts and file.is_file():
            return file
    return None


def _is_own(file: str) -> bool:
    """Whether a file is the user's code, and neither Python's, nor an installed package's, nor Strop's."""
    return (
        file.endswith(".py")
        and not _NOT_OWN.search(file)
        and not any(Path(file).is_relative_to(folder) for folder in (*_INSTALLED, _PACKAGE))
    )


def _is_own_definition(value: Any) -> bool:
    functions = [value] if isinstance(value, FunctionType) else list(_functions_of(value))
    if functions:
        file = functions[0].__code__.co_filename
        return _is_own(file) or not file.endswith(".py")  # a notebook's cell, or an interactive interpreter
    module = inspect.getmodule(value)
    return module is not None and (
        _is_own(getattr(module, "__file__", None) or "") or module.__name__ == "__main__"
    )


def _functions_of(kind: type) -> Iterator[FunctionType]:
    for member in vars(kind).values():
        found = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)) or member)
        if isinstance(found, FunctionType):
            yield found


def _source(value: Any) -> str | None:
    """Source without comments and layout; None where there is none, or it is only a part of its lines (a lambda)."""
    if getattr(value, "__name__", "") == "<lambda>":
        return None
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(value))))
    except (OSError, TypeError, SyntaxError):
        return None


def _code_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _code_names(constant)
    return names


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
