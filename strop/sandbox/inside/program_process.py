"""The process of a program whose tests run in another process: it runs the program, then what the tests ask for.

It gets neither the tests nor the expected values, only the arguments of calls, so that all it can do is to return
values.
"""

from __future__ import annotations

import builtins
import io
import operator
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .confinement import confine
from .peer import BINARY, Peer, builtin_name, set_state, state_of
from .values import Node

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda function, arguments, named: function(*arguments, **named),
    "get": getattr,
    "set": setattr,
    "item": lambda item, key: item[key],
    "set item": lambda item, key, value: item.__setitem__(key, value),
    "length": len,
    "iterate": iter,
    "next": next,
    "truth": bool,
    "text": str,
    "represent": repr,
    "equal": lambda left, right: bool(left == right),
    "instance": isinstance,
    "enter": lambda item: item.__enter__(),
    "exit": lambda item: item.__exit__(None, None, None),
    **{name: getattr(operator, name) for name in ("neg", "abs", *BINARY)},
}


def serve(incoming: int, outgoing: int, is_confined: bool) -> NoReturn:
    """Answer the tests until they end. The process keeps no other file of those that it was started with."""
    empty = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(empty, standard)
    os.close(empty)
    peer = _Program(incoming, outgoing, is_confined)
    try:
        peer.wait()
    finally:
        os._exit(1)


class _Callback:
    """A function of the tests."""

    def __init__(self, peer: Peer, number: int) -> None:
        self._peer, self._number = peer, number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._peer.ask("call", self, arguments, named)[0]


class _Program(Peer):
    def __init__(self, incoming: int, outgoing: int, is_confined: bool) -> None:
        super().__init__(incoming, outgoing)
        self._is_confined = is_confined
        self._module = type(sys)("__main__")
        self._classes: set[str] = set()
        self._output = io.TextIOWrapper(io.BytesIO(), "utf-8", "replace", write_through=True)

    def answer(self, operation: str, arguments: Sequence[Any]) -> tuple[Any, Any]:
        if operation == "confine":
            return confine(arguments[0]) if self._is_confined else "limited", None
        if operation == "run":
            return self._run(*arguments), None
        value = _OPERATIONS[operation](*arguments)
        if operation == "next" or value is not None:
            return value, None
        return None, arguments[1] if operation == "call" else None  # a function that changes its arguments

    def _run(self, source: str, names: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
        """Run the program; those of the names that it has."""
        self._classes = set(classes)
        sys.modules["__main__"] = self._module
        sys.argv = ["program.py"]
        sys.stdout = self._output
        exec(compile(source, "program.py", "exec"), self._module.__dict__)
        found = self._module.__dict__
        return {name: found[name] for name in names if name in found}

    def describe(self, item: Any, part: Callable[[Any], Any]) -> Node:
        if type(item) is _Callback:
            return ["yours", item._number]
        kind = type(item)
        if kind.__name__ in self._classes and not isinstance(item, type):
            return ["object", kind.__name__, part(state_of(item))]
        if isinstance(item, type) and (name := builtin_name(item)):
            return ["class", name]
        is_exception = isinstance(item, type) and issubclass(item, BaseException)
        return ["mine", self.number(item), [each.__name__ for each in item.__mro__] if is_exception else None]

    def build(self, node: Node) -> tuple[Any, Callable[[Any], None] | None]:
        kind, content = node[0], node[1]
        if kind == "yours":
            return self.numbered(content), None
        if kind == "builtin":
            return getattr(builtins, content), None
        if kind == "object":
            found = self._module.__dict__.get(content)
            item: Any = object.__new__(found if isinstance(found, type) else type(content, (), {}))
            return item, set_state(item)
        return _Callback(self, content), None

    def raise_other(self, names: Sequence[str], arguments: Sequence[Any]) -> NoReturn:
        found = getattr(builtins, names[0], RuntimeError)
        raise found(*arguments)

    def show_printed(self, text: str) -> None:
        """A function of the tests prints to their output, not to the program's."""

    def take_printed(self) -> str:
        buffer = self._output.buffer
        text = buffer.getvalue().decode("utf-8", "replace")
        buffer.seek(0)
        buffer.truncate()
        return str(text)
