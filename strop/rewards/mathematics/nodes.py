"""Nodes of a parsed answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


class ParseError(Exception):
    """A text that the grammar does not have."""


class UnsupportedError(ParseError):
    """An operator that the grammar leaves to math-verify: integrals, limits, derivatives, sums."""


@dataclass(frozen=True, slots=True)
class Number:
    """Rational number, exact as written."""

    value: Fraction
    digits: int = 0
    """Number of significant digits of a decimal; 0 for an integer."""
    places: int = 0
    """Number of decimal places of a decimal."""


@dataclass(frozen=True, slots=True)
class Constant:
    """`pi`, `e`, `i`, `infinity`, `ellipsis`, or a set: `reals`, `integers`, `naturals`, `rationals`, `complexes`."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """Variable, with its accent and subscript in the name."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """Operator or function with its operands."""

    name: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit as a factor of a product of powers of base units; unknown words are base units."""

    factor: Fraction
    powers: frozenset[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Quantity:
    """Value with a unit."""

    value: Node
    unit: Unit


@dataclass(frozen=True, slots=True)
class Collection:
    """Items in brackets: a tuple, interval or set; without brackets a list, whose `joint` is `or` or `,`."""

    brackets: str
    items: tuple[Node, ...]
    joint: str = ","


@dataclass(frozen=True, slots=True)
class Matrix:
    """Matrix of expressions."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """Chain of equations or inequalities."""

    sides: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio `a:b:c`."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Time:
    """Time of day or duration: the numbers between the colons, and `am`, `pm` or neither."""

    parts: tuple[int, ...]
    half: str


@dataclass(frozen=True, slots=True)
class Numeral:
    """Digits in a base, as `52_8`."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Words:
    """Text."""

    text: str


Node: TypeAlias = (
    Number
    | Constant
    | Symbol
    | Operation
    | Quantity
    | Collection
    | Matrix
    | Relation
    | Ratio
    | Time
    | Numeral
    | Words
)


def children(node: Node) -> tuple[Node, ...]:
    """Nodes directly below a node."""
    match node:
        case Operation(_, operands):
            return operands
        case Quantity(value, _):
            return (value,)
        case Collection(_, items, _):
            return items
        case Matrix(rows):
            return tuple(entry for row in rows for entry in row)
        case Relation(sides, _):
            return sides
        case Ratio(terms):
            return terms
        case _:
            return ()


def walk(node: Node) -> Iterator[Node]:
    """All nodes from a node downward."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting.extend(children(each))


def symbols(node: Node) -> frozenset[str]:
    """Names of the variables below a node."""
    return frozenset(each.name for each in walk(node) if isinstance(each, Symbol))


def is_expression(node: Node) -> bool:
    """Whether a node is a number or an expression, with or without a unit."""
    return isinstance(node, Number | Constant | Symbol | Operation | Quantity) and not (
        isinstance(node, Constant) and node.name not in ("pi", "e", "i", "infinity")
    )
