"""The process of tests: it runs them with stand-ins for what they take from the program in the other process.

A value of the program arrives as a copy of a standard type, so its comparison runs none of the program's code. An
object of a class of the program is a `_StandIn`, which is equal to no value and computes with none.
"""

from __future__ import annotations

import builtins
import collections
import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from .confinement import confine
from .main import read
from .peer import BINARY, Peer, builtin_name, set_state, state_of
from .program_process import serve
from .values import Node

_PR_SET_DUMPABLE = 4


def main(is_confined: bool = True) -> None:
    """Run the tests of a program. Input and output are those of `main.main`, where the settings have `tests_bytes`, and
    JSON with the tests follows the program. The output of the program's calls comes with that of the tests."""
    requests, answers = os.pipe(), os.pipe()
    if os.fork() == 0:  # before this process reads anything
        os.close(requests[1])
        os.close(answers[0])
        serve(requests[0], answers[1], is_confined)
    os.close(requests[0])
    os.close(answers[1])
    _hide_memory()
    settings = json.loads(read(int(read(8))))
    source = read(settings["source_bytes"]).decode()
    tests = json.loads(read(settings["tests_bytes"]))
    marker = settings.pop("marker").encode()
    del settings["tests_bytes"]
    peer = _Tests(answers[0], requests[1], tests["classes"])
    level, _ = peer.ask("confine", settings)
    if is_confined:
        level = min(level, confine(settings), key=("limited", "filtered", "confined").index)
        os.write(1, marker + b" " + level.encode() + b"\n")
    peer.send(("run", source, tests["names"], tests["classes"]))
    module = type(sys)("__main__")
    peer.names = module.__dict__
    sys.modules["__main__"] = module
    try:
        exec(compile(tests["shared"], "prompt.py", "exec"), module.__dict__)
        found, _ = peer.wait()
        module.__dict__.update((name, found[name]) for name in tests["names"] if name in found)
        exec(compile(tests["source"], "tests.py", "exec"), module.__dict__)
    except Exception as error:  # noqa: BLE001  (tests may raise anything)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    sys.stdout.flush()
    if is_confined:
        os.write(1, marker)


def _hide_memory() -> None:
    """Keep other processes of this user from this one's memory and files, where they have no privileges."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


class ProgramEnded(BaseException):
    """The program's process has ended; no test may take that for an exception of the program."""


class Exhausted(RuntimeError):
    """StopIteration of the program. Python's own would end an iteration of the tests, such as one with `map`, early."""


class _StandIn:
    """An object of the program. Attributes, items, calls and iteration are the program's; comparison is not: only two
    objects of the program are compared, by the program."""

    __slots__ = ("_number", "_peer")

    def __init__(self, peer: _Tests, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def _ask(self, operation: str, *arguments: Any) -> Any:
        return object.__getattribute__(self, "_peer").ask(operation, self, *arguments)[0]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        value, changed = object.__getattribute__(self, "_peer").ask("call", self, arguments, named)
        if value is None and changed is not None:
            for argument, copied in zip(arguments, changed, strict=True):
                _apply_changes(argument, copied)
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("set item", key, value)

    def __len__(self) -> int:
        return int(self._ask("length"))

    def __iter__(self) -> Iterator[Any]:
        found = self._ask("iterate")
        return found if isinstance(found, _StandIn) else iter(found)

    def __next__(self) -> Any:
        try:
            return self._ask("next")
        except Exhausted as error:
            raise StopIteration(*error.args) from None

    def __bool__(self) -> bool:
        return self._ask("truth") is True

    def __str__(self) -> str:
        return str(self._ask("text"))

    def __repr__(self) -> str:
        return str(self._ask("represent"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StandIn) and self._ask("equal", other) is True

    def __enter__(self) -> Any:
        return self._ask("enter")

    def __exit__(self, *error: object) -> None:
        self._ask("exit")

    def __neg__(self) -> Any:
        return self._ask("neg")

    def __abs__(self) -> Any:
        return self._ask("abs")

    def __hash__(self) -> int:
        return hash(object.__getattribute__(self, "_number"))

    def __instancecheck__(self, item: Any) -> bool:
        return isinstance(item, _StandIn) and self._ask_instance(item)

    def _ask_instance(self, item: _StandIn) -> bool:
        return object.__getattribute__(self, "_peer").ask("instance", item, self)[0] is True


def _binary(operator: str) -> Callable[[_StandIn, Any], Any]:
    def compute(left: _StandIn, right: Any) -> Any:
        return left._ask(operator, right) if isinstance(right, _StandIn) else NotImplemented

    return compute


for _operator in BINARY:
    setattr(_StandIn, f"__{_operator}__", _binary(_operator))


def _apply_changes(argument: Any, copied: Any) -> None:
    """Make an argument equal to the program's copy of it, which the program changed."""
    if type(argument) is not type(copied) or isinstance(argument, _StandIn):
        return
    if isinstance(argument, list | bytearray):
        argument[:] = copied
    elif isinstance(argument, dict | set | collections.deque):
        argument.clear()
        (argument.extend if isinstance(argument, collections.deque) else argument.update)(copied)
    elif hasattr(argument, "__dict__"):
        _set_data(argument)(state_of(copied))


def _set_data(item: Any) -> Callable[[dict[str, Any]], None]:
    """Function that gives an object of the tests its data, and nothing in place of its methods."""
    update = set_state(item)

    def checked(state: dict[str, Any]) -> None:
        for name in state:
            if name.startswith("__") or callable(getattr(type(item), name, None)):
                raise ValueError(f"the program replaces {name} of {type(item).__name__}")
        update(state)

    return checked


class _Tests(Peer):
    names: dict[str, Any]
    """Global names of the tests."""

    def __init__(self, incoming: int, outgoing: int, classes: Sequence[str]) -> None:
        super().__init__(incoming, outgoing)
        self._classes = frozenset(classes)

    def wait(self) -> tuple[Any, Any]:
        try:
            return super().wait()
        except EOFError:
            raise ProgramEnded("the program ended itself, or was killed at a limit") from None

    def send(self, message: tuple[Any, ...]) -> None:
        try:
            super().send(message)
        except BrokenPipeError:
            raise ProgramEnded("the program ended itself, or was killed at a limit") from None

    def answer(self, operation: str, arguments: Sequence[Any]) -> tuple[Any, Any]:
        if operation != "call":
            raise ValueError(operation)
        function, positional, named = arguments
        if not any(function is each for each in self._objects):
            raise ValueError("no function of the tests")
        return function(*positional, **named), None

    def describe(self, item: Any, part: Callable[[Any], Any]) -> Node:
        kind = type(item)
        if kind is _StandIn:
            return ["yours", object.__getattribute__(item, "_number")]
        if (name := builtin_name(item)) is not None:
            return ["builtin", name]
        if self.names.get(kind.__name__) is kind:
            return ["object", kind.__name__, part(state_of(item))]
        if callable(item):
            return ["mine", self.number(item)]
        raise TypeError(f"a test passes an object of {kind.__name__}, which cannot leave the tests' process")

    def build(self, node: Node) -> tuple[Any, Callable[[Any], None] | None]:
        kind, content = node[0], node[1]
        if kind == "yours":
            return self.numbered(content), None
        if kind == "class":
            found = getattr(builtins, content)
            if isinstance(found, type):
                return found, None
        if (
            kind == "object"
            and content in self._classes
            and isinstance(found := self.names.get(content), type)
        ):
            item: Any = object.__new__(found)
            return item, _set_data(item)
        if kind == "mine" and isinstance(content, int):
            bases = [each for name in node[2] or () if (each := _exception_class(name)) is not None]
            return (type(node[2][0], (bases[0],), {}) if bases else _StandIn(self, content)), None
        raise ValueError(kind)

    def raise_other(self, names: Sequence[str], arguments: Sequence[Any]) -> NoReturn:
        for name in names:
            found = self.names.get(name)
            if not (isinstance(found, type) and issubclass(found, Exception)):
                found = _exception_class(name)
            if found is not None:
                found = Exhausted if issubclass(found, StopIteration) else found
                try:
                    error = found(*arguments)
                except TypeError:  # UnicodeDecodeError and others that take certain arguments
                    continue
                raise error
        raise RuntimeError(*arguments)

    def show_printed(self, text: str) -> None:
        sys.stdout.write(text)


def _exception_class(name: str) -> type[Exception] | None:
    found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
