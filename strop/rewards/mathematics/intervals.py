"""Sets of real numbers as unions of intervals, with exact comparison of their ends."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key
from itertools import pairwise

from strop.rewards.mathematics.nodes import (
    Collection,
    Constant,
    Node,
    Number,
    Operation,
    Relation,
    Symbol,
    is_expression,
    symbols,
)
from strop.rewards.mathematics.values import UndefinedError, compare, number_of, same_value

_INFINITY = Constant("infinity")
_MINUS_INFINITY = Operation("-", (_INFINITY,))
MAX_INTERVALS = 100
"""Maximum number of intervals of a set."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Interval between two constants; a point if they are equal."""

    low: Node
    low_closed: bool
    high: Node
    high_closed: bool


class RealSet:
    """Union of disjoint intervals in ascending order."""

    def __init__(self, intervals: list[Interval]) -> None:
        self.intervals = intervals

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RealSet)
            and len(self.intervals) == len(other.intervals)
            and all(
                (one.low_closed, one.high_closed) == (two.low_closed, two.high_closed)
                and compare(one.low, two.low) == 0
                and compare(one.high, two.high) == 0
                for one, two in zip(self.intervals, other.intervals, strict=True)
            )
        )

    __hash__ = None  # type: ignore[assignment]

    def complement(self) -> RealSet:
        """All other real numbers."""
        gaps = []
        low: Node = _MINUS_INFINITY
        closed = False
        for each in self.intervals:
            gaps.append(Interval(low, closed, each.low, not each.low_closed))
            low, closed = each.high, not each.high_closed
        gaps.append(Interval(low, closed, _INFINITY, False))
        return _union(gaps)


def real_set(node: Node) -> RealSet | None:
    """Set of real numbers that a node stands for; None for another node.

    Raises UndefinedError for ends that are not constants or not in order.
    """
    try:
        return _real_set(node)
    except UndefinedError:
        return None


def _real_set(node: Node) -> RealSet | None:
    match node:
        case Constant("reals"):
            return RealSet([Interval(_MINUS_INFINITY, False, _INFINITY, False)])
        case Collection("{}", items):
            return _points(items)
        case Collection("", items, joint) if any(isinstance(item, Relation) for item in items):
            return _combined(items, joint)
        case Collection("()" | "[]" | "(]" | "[)" as brackets, (low, high)):
            return _interval(low, brackets[0] == "[", high, brackets[1] == "]")
        case Relation():
            return _solved(node)
        case Operation("union" | "intersection" | "difference" as name, (left, right)):
            one, other = _real_set(left), _real_set(right)
            if one is None or other is None:
                return None
            if name == "union":
                return _union(one.intervals + other.intervals)
            return _intersection(one, other if name == "intersection" else other.complement())
        case _:
            return None


def _points(items: tuple[Node, ...]) -> RealSet | None:
    if len(items) > MAX_INTERVALS or not all(
        is_expression(item) and number_of(item) is not None for item in items
    ):
        return None
    return _union([Interval(item, True, item, True) for item in items])


def _interval(low: Node, low_closed: bool, high: Node, high_closed: bool) -> RealSet | None:
    if not (is_expression(low) and is_expression(high)):
        return None
    order = compare(low, high)
    if order > 0 or (order == 0 and not (low_closed and high_closed)):
        return None
    return RealSet([Interval(low, low_closed, high, high_closed)])


def _combined(items: tuple[Node, ...], joint: str) -> RealSet | None:
    """Union of conditions with `or`, intersection of others; excluded values are always excluded together."""
    sets = []
    names: set[str] = set()
    for item in items:
        found = _real_set(item)
        if found is None or not isinstance(item, Relation):
            return None
        names |= symbols(item)
        sets.append(found)
    if len(names) != 1 or len(sets) > MAX_INTERVALS:
        return None
    excluded = all(isinstance(item, Relation) and item.operators == ("!=",) for item in items)
    equations = all(isinstance(item, Relation) and item.operators == ("=",) for item in items)
    result = sets[0]
    for each in sets[1:]:
        if (joint == "or" or equations) and not excluded:
            result = _union(result.intervals + each.intervals)
        else:
            result = _intersection(result, each)
    if not result.intervals and joint == ",":
        return _combined(items, "or")  # `x < -1, x > 1`
    return result


def _solved(relation: Relation) -> RealSet | None:
    """Solutions of a chain of inequalities in one variable, each of them linear."""
    if len(symbols(relation)) != 1 or not set(relation.operators) <= {
        "<",
        "<=",
        ">",
        ">=",
        "!=",
        "=",
        "in",
        "notin",
    }:
        return None
    if relation.operators[0] in ("in", "notin"):
        inside = _real_set(relation.sides[1])
        is_element = len(relation.operators) == 1 and isinstance(relation.sides[0], Symbol)
        if inside is None or not is_element:
            return None
        return inside if relation.operators[0] == "in" else inside.complement()
    result: RealSet | None = None
    for (left, right), operator in zip(pairwise(relation.sides), relation.operators, strict=True):
        if not (is_expression(left) and is_expression(right)):
            return None
        solved = _linear(left, right, operator)
        if solved is None:
            return None
        result = solved if result is None else _intersection(result, solved)
    return result


def _linear(left: Node, right: Node, operator: str) -> RealSet | None:
    (name,) = symbols(left) | symbols(right) or ("",)
    if not name:
        return None
    if isinstance(right, Symbol):
        left, right, operator = right, left, _MIRRORED[operator]
    if not isinstance(left, Symbol) or symbols(right):
        solved = _linear_bound(left, right, name)
        if solved is None:
            return None
        bound, is_falling = solved
        operator = _MIRRORED[operator] if is_falling else operator
    else:
        bound = right
    if abs(compare_infinity(bound)):
        return None
    below = Interval(_MINUS_INFINITY, False, bound, operator == "<=")
    above = Interval(bound, operator == ">=", _INFINITY, False)
    if operator in ("<", "<="):
        return RealSet([below])
    if operator in (">", ">="):
        return RealSet([above])
    return RealSet([Interval(bound, True, bound, True)]) if operator == "=" else RealSet([below, above])


_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


def compare_infinity(node: Node) -> int:
    """1 or -1 for infinite constants, else 0."""
    return 1 if node == _INFINITY else -1 if node == _MINUS_INFINITY else 0


def _linear_bound(left: Node, right: Node, name: str) -> tuple[Node, bool] | None:
    """Root of a difference that is linear in its variable, and whether the difference falls."""
    difference = Operation("+", (left, Operation("-", (right,))))
    values = []
    for number in range(3):
        value = number_of(_at(difference, name, Number(Fraction(number))))
        if value is None:
            return None
        values.append(value)
    slope = values[1] - values[0]
    if slope == 0 or values[2] - values[1] != slope:
        return None
    line = Operation("+", (Operation("*", (Symbol(name), Number(slope))), Number(values[0])))
    if not same_value(difference, line):
        return None
    return Number(-values[0] / slope), slope < 0


def _at(node: Node, name: str, value: Node) -> Node:
    match node:
        case Symbol(found) if found == name:
            return value
        case Operation(operator, operands):
            return Operation(operator, tuple(_at(each, name, value) for each in operands))
        case _:
            return node


def _intersection(one: RealSet, other: RealSet) -> RealSet:
    parts = []
    for a in one.intervals:
        for b in other.intervals:
            low, low_closed = _end(a.low, a.low_closed, b.low, b.low_closed, 1)
            high, high_closed = _end(a.high, a.high_closed, b.high, b.high_closed, -1)
            parts.append(Interval(low, low_closed, high, high_closed))
    return _union(parts)


def _end(a: Node, a_closed: bool, b: Node, b_closed: bool, direction: int) -> tuple[Node, bool]:
    """The inner one of two ends."""
    order = compare(a, b) * direction
    if order == 0:
        return a, a_closed and b_closed
    return (a, a_closed) if order > 0 else (b, b_closed)


def _union(parts: list[Interval]) -> RealSet:
    if len(parts) > MAX_INTERVALS:
        raise UndefinedError
    kept = []
    for part in parts:
        order = compare(part.low, part.high)
        if order < 0 or (order == 0 and part.low_closed and part.high_closed):
            kept.append(part)
    kept.sort(key=cmp_to_key(_order))
    merged: list[Interval] = []
    for part in kept:
        if merged:
            last = merged[-1]
            gap = compare(last.high, part.low)
            if gap > 0 or (gap == 0 and (last.high_closed or part.low_closed)):
                further = compare(part.high, last.high)
                closed = part.high_closed if further > 0 else last.high_closed
                closed = closed or (further == 0 and part.high_closed)
                high = part.high if further > 0 else last.high
                merged[-1] = Interval(last.low, last.low_closed, high, closed)
                continue
        merged.append(part)
    return RealSet(merged)


def _order(one: Interval, other: Interval) -> int:
    return compare(one.low, other.low) or int(other.low_closed) - int(one.low_closed)
