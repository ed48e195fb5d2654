"""Plain encoding of Python values between the process of a program and the process of its tests.

A message is JSON: the root and a table of nodes, in which values refer to each other by index, so that neither
depth nor cycles matter. Decoding builds only values of the standard types below and those that the caller adds; it
never runs code of the other process.
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Callable
from typing import Any

_MAX_MESSAGE_BYTES = 1 << 27
_PLAIN_INT = 1 << 63
_CONTAINERS: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
}
_TEXT_FORMS: dict[tuple[str, str], Callable[[Any], str]] = {
    ("decimal", "Decimal"): str,
    ("fractions", "Fraction"): str,
    ("datetime", "datetime"): lambda value: value.isoformat(),
    ("datetime", "date"): lambda value: value.isoformat(),
    ("datetime", "time"): lambda value: value.isoformat(),
}
"""Module and class -> text from which the class builds the value again."""

Node = list[Any]
Describe = Callable[[Any, Callable[[Any], Any]], Node]
"""Describes an object of another type; its second argument encodes a part. Raises TypeError."""
Build = Callable[[Node], tuple[Any, Callable[[Any], None] | None]]
"""Builds the object of a node, and a function that gives it its state, encoded as the node's last item."""


def encode(value: Any, describe: Describe) -> bytes:
    """The message of a value."""
    nodes: list[Node] = []
    seen: dict[int, list[int]] = {}
    pending: list[Any] = []

    def part(item: Any) -> Any:
        kind = type(item)
        if item is None or kind is bool or kind is str or kind is float:
            return item
        if kind is int and -_PLAIN_INT < item < _PLAIN_INT:
            return item
        if id(item) not in seen:
            seen[id(item)] = [len(nodes)]
            nodes.append([])
            pending.append(item)  # also keeps the object, and so its id
        return seen[id(item)]

    root, done = part(value), 0
    while done < len(pending):
        nodes[done] = _node(pending[done], part, describe)
        done += 1
    return json.dumps([root, nodes]).encode()


def _node(item: Any, part: Callable[[Any], Any], describe: Describe) -> Node:
    for name, container in _CONTAINERS.items():
        if isinstance(item, container):
            return [name, list(map(part, container.__iter__(item)))]
    if isinstance(item, dict):
        return ["dict", [[part(key), part(value)] for key, value in dict.items(item)]]
    if isinstance(item, int):
        return ["int", hex(int.__index__(item))]
    if isinstance(item, float):
        return ["float", float.__float__(item)]
    if isinstance(item, str):
        return ["str", str.__str__(item)]
    if isinstance(item, complex):
        return ["complex", item.real, item.imag]
    if isinstance(item, bytes | bytearray):
        return ["bytes" if isinstance(item, bytes) else "bytearray", bytes(item).hex()]
    if isinstance(item, range):
        return ["range", *map(part, (item.start, item.stop, item.step))]
    kind = type(item)
    if (text := _TEXT_FORMS.get((kind.__module__, kind.__name__))) is not None:
        return ["text", kind.__module__, kind.__name__, text(item)]
    if (kind.__module__, kind.__name__) == ("datetime", "timedelta"):
        return ["timedelta", item.days, item.seconds, item.microseconds]
    if kind.__module__ == "numpy" and hasattr(item, "dtype") and item.dtype.kind in "biufcSU":
        shape = None if kind.__name__ != "ndarray" else list(item.shape)
        return ["numpy", item.dtype.str, shape, item.tobytes().hex()]
    return describe(item, part)


def decode(message: bytes, build: Build) -> Any:
    """The value of a message. A message that `encode` did not write raises some exception."""
    root, nodes = json.loads(message)
    built: dict[int, Any] = {}
    states: list[tuple[Callable[[Any], None], Any]] = []
    for index, (kind, *rest) in enumerate(nodes):
        if kind in ("list", "set", "deque"):
            built[index] = _CONTAINERS[kind]()
        elif kind == "dict":
            built[index] = {}
        elif kind not in ("tuple", "frozenset"):
            built[index] = _atom(kind, rest)
            if built[index] is _OTHER:
                built[index], take_state = build(nodes[index])
                if take_state is not None:
                    states.append((take_state, rest[-1]))

    def value(part: Any) -> Any:
        return built[part[0]] if isinstance(part, list) else part

    _build_immutable(nodes, built, value)
    for index, (kind, *rest) in enumerate(nodes):
        if kind in ("list", "deque"):
            built[index].extend(map(value, rest[0]))
    for take_state, state in states:
        built_state = built[state[0]]
        built_state.update((value(key), value(each)) for key, each in nodes[state[0]][1])
        take_state(built_state)
    for index, (kind, *rest) in enumerate(nodes):
        if kind == "set":
            built[index].update(map(value, rest[0]))
        elif kind == "dict":
            built[index].update((value(key), value(each)) for key, each in rest[0])
    return value(root)


def _build_immutable(nodes: list[Node], built: dict[int, Any], value: Callable[[Any], Any]) -> None:
    """Build tuples and frozen sets, each after its parts."""
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            index = stack[-1]
            if index in built:
                stack.pop()
                continue
            missing = [part[0] for part in nodes[index][1] if isinstance(part, list) and part[0] not in built]
            if not missing:
                built[index] = _CONTAINERS[nodes[index][0]](map(value, nodes[index][1]))
            elif len(stack) > len(nodes):
                raise ValueError("a tuple that is its own part")
            else:
                stack.append(missing[0])


_OTHER: Any = object()


def _atom(kind: str, rest: Node) -> Any:
    """The value of a node without parts; `_OTHER` for a kind that is not of this module."""
    if kind == "int":
        return int(rest[0], 16)
    if kind in ("float", "str"):
        return rest[0]
    if kind == "complex":
        return complex(*rest)
    if kind in ("bytes", "bytearray"):
        return (bytes if kind == "bytes" else bytearray).fromhex(rest[0])
    if kind == "range":
        return range(*rest)
    if kind == "text" and (rest[0], rest[1]) in _TEXT_FORMS:
        found = getattr(__import__(rest[0]), rest[1])
        return found.fromisoformat(rest[2]) if rest[0] == "datetime" else found(rest[2])
    if kind == "timedelta":
        import datetime

        return datetime.timedelta(*rest)
    if kind == "numpy":
        import numpy

        array = numpy.frombuffer(bytes.fromhex(rest[2]), dtype=rest[0])
        return array[0] if rest[1] is None else array.reshape(rest[1]).copy()
    return _OTHER


def send(descriptor: int, message: bytes) -> None:
    """Write a message and its length."""
    unsent = memoryview(len(message).to_bytes(8, "big") + message)
    while unsent:
        unsent = unsent[os.write(descriptor, unsent) :]


def receive(descriptor: int) -> bytes:
    """Read a message. Raises EOFError if the other process has ended, ValueError for an impossible length."""
    length = int.from_bytes(_read(descriptor, 8), "big")
    if length > _MAX_MESSAGE_BYTES:
        raise ValueError("the message is too long")
    return _read(descriptor, length)


def _read(descriptor: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(descriptor, min(count, 1 << 16))
        if not part:
            raise EOFError("the other process has ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
