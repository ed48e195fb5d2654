"""One end of the conversation between the process of a program and the process of its tests."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .values import Node, decode, encode, receive, send

BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge")
"""Operators, as in the module `operator`, that the program computes for two objects of its own."""


class Peer(ABC):
    """Asks the other process, and answers it, also while it waits for an answer (a function that is passed as an
    argument is called in its own process).

    Messages are tuples: `(operation, *arguments)` asks, `("return", value, arguments, printed)` and
    `("raise", class names, arguments, printed)` answer.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    @abstractmethod
    def answer(self, operation: str, arguments: Sequence[Any]) -> tuple[Any, Any]:
        """Perform an operation for the other process: its value, and the arguments if it changed them."""

    @abstractmethod
    def describe(self, item: Any, part: Callable[[Any], Any]) -> Node:
        """See `values.Describe`."""

    @abstractmethod
    def build(self, node: Node) -> tuple[Any, Callable[[Any], None] | None]:
        """See `values.Build`."""

    @abstractmethod
    def raise_other(self, names: Sequence[str], arguments: Sequence[Any]) -> NoReturn:
        """Raise the exception of the other process with these class names, the most special one first."""

    def take_printed(self) -> str:
        """Text that this process has printed since the last call."""
        return ""

    @abstractmethod
    def show_printed(self, text: str) -> None:
        """Take text that the other process has printed."""

    def ask(self, operation: str, *arguments: Any) -> tuple[Any, Any]:
        """Have the other process perform an operation: its value and changed arguments. Raises its exception."""
        self.send((operation, *arguments))
        return self.wait()

    def wait(self) -> tuple[Any, Any]:
        """The answer to what was sent last; requests that come before it are answered."""
        while True:
            kind, *rest = decode(receive(self._incoming), self.build)
            if kind == "return":
                value, arguments, printed = rest
                self.show_printed(printed)
                return value, arguments
            if kind == "raise":
                names, arguments, printed = rest
                self.show_printed(printed)
                self.raise_other(names, arguments)
            self._respond(kind, rest)

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message. Raises TypeError for a value that cannot leave this process."""
        send(self._outgoing, encode(message, self.describe))

    def _respond(self, operation: str, arguments: Sequence[Any]) -> None:
        try:
            value, changed = self.answer(operation, arguments)
            message = encode(("return", value, changed, self.take_printed()), self.describe)
        except Exception as error:  # noqa: BLE001  (the other process gets it)
            names = tuple(each.__name__ for each in type(error).__mro__)
            plain = tuple(each if isinstance(each, str | int | float) else repr(each) for each in error.args)
            message = encode(("raise", names, plain, self.take_printed()), self.describe)
        send(self._outgoing, message)

    def number(self, item: Any) -> int:
        """Number by which the other process refers to an object of this one."""
        if id(item) not in self._numbers:
            self._numbers[id(item)] = len(self._objects)
            self._objects.append(item)
        return self._numbers[id(item)]

    def numbered(self, number: int) -> Any:
        """Object with a number."""
        return self._objects[number]


def builtin_name(item: Any) -> str | None:
    """Name of an object of `builtins`; None for another object."""
    name = getattr(item, "__name__", None)
    return name if isinstance(name, str) and getattr(builtins, name, None) is item else None


def state_of(item: Any) -> dict[str, Any]:
    """Attributes of an object."""
    state = {}
    for each in type(item).__mro__:
        slots = each.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(item, name):
                state[name] = getattr(item, name)
    return {**state, **getattr(item, "__dict__", {})}


def set_state(item: Any) -> Callable[[dict[str, Any]], None]:
    """Function that gives an object its attributes."""

    def update(state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(item, name, value)

    return update
