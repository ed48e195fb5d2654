"""Equality of two parsed answers: of numbers, expressions, tuples, sets, intervals, equations, matrices and text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from strop.rewards.mathematics import intervals
from strop.rewards.mathematics.nodes import (
    Collection,
    Constant,
    Matrix,
    Node,
    Number,
    Numeral,
    Operation,
    ParseError,
    Quantity,
    Ratio,
    Relation,
    Symbol,
    Time,
    Unit,
    Words,
    is_expression,
    symbols,
    walk,
)
from strop.rewards.mathematics.units import conversion
from strop.rewards.mathematics.values import (
    UndefinedError,
    is_rounding,
    number_of,
    same_value,
)

MAX_ITEMS = 200
"""Maximum number of items of a list that are compared without their order."""
_ZERO = Number(Fraction(0))
_HUNDREDTH = Number(Fraction(1, 100))
_ELLIPSIS = Constant("ellipsis")
_NAMED: dict[str, Node] = {
    "all real numbers": Constant("reals"),
    "all reals": Constant("reals"),
    "all real x": Constant("reals"),
    "real numbers": Constant("reals"),
    "no solution": Collection("{}", ()),
    "no solutions": Collection("{}", ()),
    "no real solution": Collection("{}", ()),
    "no real solutions": Collection("{}", ()),
    "empty set": Collection("{}", ()),
    "the empty set": Collection("{}", ()),
    "infinity": Constant("infinity"),
}
"""Sets and numbers that are named in words."""


def is_equal(gold: Node, stated: Node) -> bool:
    """Whether a stated answer is the task's answer, in another form or the same.

    A value may lack the unit, the percent or degree sign, and the variable of the task's answer, and may have a unit or
    a variable that the task's answer lacks.
    """
    try:
        gold, stated = _prepared(gold), _prepared(stated)
        values = _stated_values(stated)
        golds = [gold, *_stated_values(gold)[1:]]
    except (UndefinedError, ParseError):
        return False
    return any(_same(each, value) for each in golds for value in values)


def _prepared(node: Node) -> Node:
    if isinstance(node, Words):
        return _NAMED.get(" ".join(node.text.lower().split()), node)
    if isinstance(node, Collection) and node.brackets == "":
        items = _distributed(
            [each for item in node.items if not _is_any_integer(item) for each in _both_signs(item)]
        )
        if node.joint == "or" and all(_same(items[0], item) for item in items[1:10]):
            items = items[:1] + items[10:]
        return Collection("", tuple(items), node.joint) if len(items) > 1 else items[0]
    both = _both_signs(node)
    return Collection("", tuple(both), "or") if len(both) > 1 else both[0]


def _is_any_integer(node: Node) -> bool:
    r"""Whether a node is a condition such as `k \in \mathbb{Z}`."""
    return isinstance(node, Relation) and node.operators == ("in",) and node.sides[1] == Constant("integers")


def _both_signs(node: Node) -> list[Node]:
    """The two nodes of one with plus-minus signs, and the node of another; a set gets the elements of both."""
    if isinstance(node, Collection) and node.brackets == "{}":
        return [Collection("{}", tuple(each for item in node.items for each in _both_signs(item)))]
    if not any(
        isinstance(each, Operation) and each.name in ("plus_minus", "minus_plus") for each in walk(node)
    ):
        return [node]
    return [_signed(node, upper) for upper in (True, False)]


def _signed(node: Node, upper: bool) -> Node:
    match node:
        case Operation("plus_minus" | "minus_plus" as name, (operand,)):
            inside = _signed(operand, upper)
            return inside if upper == (name == "plus_minus") else Operation("-", (inside,))
        case Operation(name, operands):
            return Operation(name, tuple(_signed(each, upper) for each in operands))
        case Quantity(value, unit):
            return Quantity(_signed(value, upper), unit)
        case Relation(sides, operators):
            return Relation(tuple(_signed(each, upper) for each in sides), operators)
        case Collection(brackets, items, joint):
            return Collection(brackets, tuple(_signed(each, upper) for each in items), joint)
        case _:
            return node


def _distributed(items: list[Node]) -> list[Node]:
    """`n = 2, 3, 4` with the variable at each value."""
    first = items[0]
    if not isinstance(first, Relation) or len(first.operators) != 1 or first.operators[0] not in ("=", "!="):
        return items
    if any(isinstance(item, Relation) for item in items[1:]) or not isinstance(first.sides[0], Symbol):
        return items
    return [first, *(Relation((first.sides[0], item), first.operators) for item in items[1:])]


def _stated_values(node: Node) -> list[Node]:
    """The node, and its values: the last side of an equation or an approximation; none if the statement is false."""
    if not isinstance(node, Relation) or set(node.operators) - {"=", "~"}:
        return [node]
    constants = [side for side in node.sides if is_expression(side) and not symbols(side)]
    exact = [side for side in constants if not isinstance(_unmarked(side), Number)]
    for left, right in pairwise(constants):
        if not _is_consistent(left, right):
            return []
    if node.operators[-1] == "~" and len(constants) >= 2:
        return constants
    if len(constants) == len(node.sides):
        return [node, *(exact[:1] or constants[:1]), constants[-1]]
    return [node]


def _unmarked(node: Node) -> Node:
    return node.operands[0] if isinstance(node, Operation) and node.name == "-" else node


def _is_consistent(left: Node, right: Node) -> bool:
    """Whether two sides are equal, or the right one is a rounding of the left one."""
    return _same_expression(left, right) or is_rounding(_mark(left).value, _mark(right).value)


def _same(gold: Node, stated: Node) -> bool:
    try:
        return _same_kind(gold, stated)
    except (UndefinedError, ParseError):
        return False


def _same_kind(gold: Node, stated: Node) -> bool:
    if gold == stated:
        return _is_defined(gold)
    if isinstance(gold, Relation) or isinstance(stated, Relation):
        return _same_relation(gold, stated)
    if is_expression(gold) and is_expression(stated) and not (_is_set(gold) or _is_set(stated)):
        return _same_expression(gold, stated)
    if isinstance(gold, Collection) and isinstance(stated, Collection) and _same_collection(gold, stated):
        return True
    match gold, stated:
        case Matrix(rows), Matrix(others):
            return _all_same(
                [each for row in rows for each in row], [each for row in others for each in row]
            ) and (len(rows) == len(others))
        case Words(text), Words(other):
            return _plain(text) == _plain(other)
        case (Words(text), Symbol() | Operation() as letters) | (
            Symbol() | Operation() as letters,
            Words(text),
        ):
            return _plain(text) == _plain(_letters(letters))
        case Time() | Ratio(), _:
            return _same_ratio(gold, stated)
        case _, Time() | Ratio():
            return _same_ratio(stated, gold)
        case (Numeral(), _) | (_, Numeral()):
            return False
        case _:
            return _same_set(gold, stated)


def _is_defined(node: Node) -> bool:
    """Whether a constant has a value; other nodes have."""
    return not is_expression(node) or _is_set(node) or same_value(node, node)


def _plain(text: str) -> str:
    words = "".join(each if each.isalnum() else " " for each in text).split()
    plain = " ".join(words)
    return plain if len(plain) == 1 else plain.casefold()


def _letters(node: Node) -> str:
    """Letters of a variable or of a product of variables, which may be a word."""
    match node:
        case Symbol(name) | Constant("e" | "i" as name):
            return name
        case Operation("*", operands):
            return "".join(map(_letters, operands))
        case _:
            return "?"


# Expressions


@dataclass(frozen=True, slots=True)
class _Marked:
    """A value without its unit, percent or degree sign."""

    value: Node
    sign: str
    unit: Unit | None


def _mark(node: Node) -> _Marked:
    match node:
        case Operation("percent", (value,)):
            return _Marked(value, "percent", None)
        case Quantity(value, unit):
            return _Marked(_mark(value).value, "", unit)
        case Operation("-", (operand,)):
            inside = _mark(operand)
            return _Marked(Operation("-", (inside.value,)), inside.sign, inside.unit)
    without = _without_degrees(node)
    return _Marked(without, "degree" if without != node else "", None)


def _without_degrees(node: Node) -> Node:
    match node:
        case Operation("degree", (value,)):
            return value
        case Operation("+" | "-" | "*" | "/" as name, operands):
            return Operation(name, tuple(_without_degrees(each) for each in operands))
        case _:
            return node


def _same_expression(gold: Node, stated: Node) -> bool:
    """Equality of two values with their units.

    A percentage equals its number, and the task's percentage also the number before the percent sign.
    """
    one, other = _mark(gold), _mark(stated)
    if "degree" in (one.sign, other.sign):
        if one.unit or other.unit or "percent" in (one.sign, other.sign):
            return False
        return same_value(one.value, other.value)
    if one.sign == "percent":
        if other.sign == "percent":
            return same_value(one.value, other.value)
        return same_value(one.value, other.value) or same_value(_hundredth(one.value), other.value)
    if other.sign == "percent":
        return same_value(one.value, _hundredth(other.value))
    if one.unit is None or other.unit is None:
        return same_value(one.value, other.value)
    factor = conversion(other.unit, one.unit)
    if factor is None:
        return False
    converted = other.value if factor == 1 else Operation("*", (other.value, Number(factor)))
    return same_value(one.value, converted)


def _hundredth(value: Node) -> Node:
    return Operation("*", (value, _HUNDREDTH))


# Collections


def _same_collection(gold: Collection, stated: Collection) -> bool:
    """Equality of tuples, intervals, sets and lists: a list is compared with a tuple in order, with a set without."""
    pairs = {gold.brackets, stated.brackets}
    if "cases" in pairs:
        return pairs == {"cases"} and _all_same(gold.items, stated.items)
    if len(pairs) == 2 and "" not in pairs:
        return False
    if pairs == {"", "[]"} and len(gold.items) == 2:
        return False
    if any(_ELLIPSIS in each.items for each in (gold, stated)):
        return _same_sequence(gold.items, stated.items)
    ones, others = (_solutions(each.items) if pairs - {""} else each.items for each in (gold, stated))
    if pairs <= {"", "{}"}:
        if pairs == {""} and (_has_inequality(gold) or _has_inequality(stated)):
            return False
        return _same_elements(ones, others, is_set="{}" in pairs)
    return _all_same(ones, others)


def _has_inequality(node: Collection) -> bool:
    return any(isinstance(item, Relation) and set(item.operators) - {"=", "~", "in"} for item in node.items)


def _solutions(items: Sequence[Node]) -> Sequence[Node]:
    """Values of `x = 5, y = 3` by the names of the variables; the items if they are no such solution."""
    values: dict[str, Node] = {}
    for item in items:
        if not (
            isinstance(item, Relation) and item.operators == ("=",) and isinstance(item.sides[0], Symbol)
        ):
            return items
        values[f"{item.sides[0].name} {len(values) if item.sides[0].name in values else ''}"] = item.sides[1]
    return [value for _, value in sorted(values.items())]


def _all_same(ones: Sequence[Node], others: Sequence[Node]) -> bool:
    return len(ones) == len(others) and all(
        _same(one, other) for one, other in zip(ones, others, strict=True)
    )


def _same_elements(ones: Sequence[Node], others: Sequence[Node], *, is_set: bool) -> bool:
    if max(len(ones), len(others)) > MAX_ITEMS:
        return _all_same(ones, others)
    if not is_set and len(ones) != len(others):
        return False
    left = list(others)
    for one in ones:
        found = next((number for number, other in enumerate(left) if _same(one, other)), None)
        if found is None:
            return is_set and any(_same(one, other) for other in others) and _covers(ones, left)
        del left[found]
    return not left or (is_set and _covers(ones, left))


def _covers(ones: Sequence[Node], others: Sequence[Node]) -> bool:
    return all(any(_same(one, other) for one in ones) for other in others)


def _same_sequence(ones: Sequence[Node], others: Sequence[Node]) -> bool:
    """Equality of lists with an ellipsis: item by item, or as arithmetic progressions."""
    if _all_same(ones, others):
        return True
    progressions = [_progression(items) for items in (ones, others)]
    return progressions[0] is not None and progressions[0] == progressions[1]


def _progression(items: Sequence[Node]) -> tuple[Fraction, Fraction, Fraction | None] | None:
    """First term, difference and last term (None: infinite) of an arithmetic progression; None for another list."""
    numbers = [None if item == _ELLIPSIS else number_of(item) for item in items]
    gaps = [position for position, item in enumerate(items) if item == _ELLIPSIS]
    end = gaps[0] if gaps else len(items)
    beginning = [number for number in numbers[:end] if number is not None]
    rest = [number for number in numbers[end + 1 :] if number is not None]
    if len(gaps) > 1 or len(beginning) != end or end < 2 or len(rest) != max(len(items) - end - 1, 0):
        return None
    step = beginning[1] - beginning[0]
    if step == 0 or any(after - before != step for before, after in [*pairwise(beginning), *pairwise(rest)]):
        return None
    if not gaps:
        return beginning[0], step, beginning[-1]
    if not rest:
        return (beginning[0], step, None) if end >= 3 else None
    count = (rest[0] - beginning[-1]) / step
    return (beginning[0], step, rest[-1]) if count.denominator == 1 and count > 0 else None


def _same_ratio(one: Node, other: Node) -> bool:
    """Equality of a time or a ratio with another, or of a ratio of two numbers with a fraction."""
    if isinstance(one, Time) and isinstance(other, Time):
        return _same_time(one, other)
    ratios = [
        Ratio(tuple(Number(Fraction(part)) for part in each.parts)) if isinstance(each, Time) else each
        for each in (one, other)
    ]
    first, second = ratios
    if isinstance(first, Ratio) and isinstance(second, Ratio):
        if _ELLIPSIS in first.terms + second.terms:
            return _same_sequence(first.terms, second.terms)
        if len(first.terms) != len(second.terms):
            return False
        return all(
            _same(Operation("*", (a, d)), Operation("*", (b, c)))
            for (a, b), (c, d) in zip(pairwise(first.terms), pairwise(second.terms), strict=True)
        )
    is_fraction = isinstance(other, Operation) and other.name in ("/", "*")
    if isinstance(one, Ratio) and len(one.terms) == 2 and is_fraction:
        return _same(Operation("/", one.terms), other)
    return False


def _same_time(one: Time, other: Time) -> bool:
    """Equality of times; one without `am` and `pm` equals either, and the time of 24 hours."""
    if one.parts[1:] + (0,) * (3 - len(one.parts)) != other.parts[1:] + (0,) * (3 - len(other.parts)):
        return False
    hours = [
        {each.parts[0]} if not each.half else {each.parts[0] % 12 + 12 * (each.half == "p")}
        for each in (one, other)
    ]
    if bool(one.half) != bool(other.half):
        marked = one if one.half else other
        hours[0 if one.half else 1].add(marked.parts[0])
    return bool(hours[0] & hours[1])


# Relations and sets


def _same_relation(gold: Node, stated: Node) -> bool:
    """Equality of equations and inequalities with each other, with the value of a variable, or with a set."""
    gold, stated = (_element(each) for each in (gold, stated))
    if isinstance(gold, Relation) and isinstance(stated, Relation):
        if set(gold.operators + stated.operators) == {"="}:
            return _same_equation(gold, stated)
        if symbols(gold) != symbols(stated):
            return False
        if gold.operators == stated.operators and _all_same(gold.sides, stated.sides):
            return True
        if set(gold.operators + stated.operators) <= {"equiv", "="}:
            return _all_same(gold.sides, stated.sides)
        return _same_set(gold, stated) or _same_inequality(gold, stated)
    if isinstance(stated, Relation) and not isinstance(gold, Relation):
        if set(stated.operators) <= {"=", "~"}:
            value = _assigned(stated)
            return _same(gold, stated.sides[-1] if value is None else value)
        return _same_set(gold, stated)
    if not isinstance(gold, Relation):
        return _same(gold, stated)
    if set(gold.operators) <= {"=", "~"}:
        value = _assigned(gold)
        return value is not None and _same(value, stated)
    return _same_set(gold, stated)


def _element(node: Node) -> Node:
    r"""The set of `x \in S`; another node as it stands."""
    if isinstance(node, Relation) and node.operators == ("in",) and isinstance(node.sides[0], Symbol):
        return node.sides[1]
    return node


def _assigned(relation: Relation) -> Node | None:
    """Value of the variable of an equation that is solved for it; None for another equation."""
    first, last = relation.sides[0], relation.sides[-1]
    if _is_name(first):
        return last
    return first if isinstance(last, Symbol) and len(relation.sides) == 2 else None


def _is_name(node: Node) -> bool:
    """Whether a node is a variable, a tuple of variables, or a function of variables, as `f(x)`."""
    if isinstance(node, Symbol):
        return True
    if isinstance(node, Collection):
        return all(isinstance(each, Symbol) for each in node.items)
    return (
        isinstance(node, Operation)
        and node.name == "*"
        and all(isinstance(each, Symbol) for each in node.operands)
    )


def _same_equation(gold: Relation, stated: Relation) -> bool:
    names = [each.sides[0] if _is_name(each.sides[0]) else None for each in (gold, stated)]
    one, other = _assigned(gold), _assigned(stated)
    is_function = any(isinstance(name, Operation) for name in names)  # f(x) = 2x is y = 2x
    if one is not None and other is not None and (names[0] == names[1] or is_function) and _same(one, other):
        return True
    if one is not None and other is not None and not (symbols(one) or symbols(other)):
        left, right = (
            each.sides[0] if _is_name(each.sides[0]) else each.sides[-1] for each in (gold, stated)
        )
        return left == right and _same(one, other)
    if len(gold.sides) != 2 or len(stated.sides) != 2:
        return False
    if not all(is_expression(side) for side in gold.sides + stated.sides):
        return False
    return (
        _is_multiple(_difference(gold), _difference(stated))
        or _has_solution(gold, stated)
        or _has_solution(stated, gold)
    )


def _difference(relation: Relation) -> Node:
    return Operation("+", (relation.sides[0], Operation("-", (relation.sides[1],))))


def _is_multiple(one: Node, other: Node, *, positive: bool = False) -> bool:
    """Whether one expression is a constant multiple of the other, other than zero."""
    if symbols(one) != symbols(other) or same_value(one, _ZERO) or same_value(other, _ZERO):
        return False
    for name in sorted(symbols(one)):
        shifted = _substituted(one, name, _SHIFT), _substituted(other, name, _SHIFT)
        if not same_value(Operation("*", (one, shifted[1])), Operation("*", (other, shifted[0]))):
            return False
    if not positive:
        return True
    place = {name: Number(Fraction(number + 5, 7)) for number, name in enumerate(sorted(symbols(one)))}
    ones, others = one, other
    for name, value in place.items():
        ones, others = _substituted(ones, name, value), _substituted(others, name, value)
    return same_value(ones, Operation("abs", (ones,))) == same_value(others, Operation("abs", (others,)))


_SHIFT = Number(Fraction(17, 13))


def _substituted(node: Node, name: str, value: Node) -> Node:
    match node:
        case Symbol(found) if found == name:
            return value
        case Operation(operator, operands):
            return Operation(operator, tuple(_substituted(each, name, value) for each in operands))
        case Quantity(inside, unit):
            return Quantity(_substituted(inside, name, value), unit)
        case _:
            return node


def _has_solution(solved: Relation, equation: Relation) -> bool:
    """Whether an equation is linear in the variable of a solved one, and has its solution."""
    variable = solved.sides[0]
    value = solved.sides[1]
    if not isinstance(variable, Symbol) or variable.name in symbols(value):
        return False
    difference = _difference(equation)
    at = [_substituted(difference, variable.name, Number(Fraction(number))) for number in (0, 1, 2)]
    bend = Operation("+", (at[0], at[2]))
    return (
        same_value(bend, Operation("*", (Number(Fraction(2)), at[1])))
        and not same_value(at[0], at[1])
        and same_value(_substituted(difference, variable.name, value), _ZERO)
    )


def _same_inequality(gold: Relation, stated: Relation) -> bool:
    if len(gold.sides) != 2 or len(stated.sides) != 2:
        return False
    sides = []
    for each in (gold, stated):
        left, right = each.sides if each.operators[0] in ("<", "<=", "!=") else each.sides[::-1]
        sides.append(Operation("+", (left, Operation("-", (right,)))))
    operators = [{">": "<", ">=": "<="}.get(each.operators[0], each.operators[0]) for each in (gold, stated)]
    if operators[0] != operators[1] or operators[0] not in ("<", "<=", "!="):
        return False
    return _is_multiple(sides[0], sides[1], positive=operators[0] != "!=")


def _is_set(node: Node) -> bool:
    return isinstance(node, Operation) and node.name in ("union", "intersection", "difference")


def _same_set(gold: Node, stated: Node) -> bool:
    """Equality of two sets of real numbers, or of a set of one element and the element."""
    one, other = (intervals.real_set(each) for each in (gold, stated))
    if one is not None and other is not None:
        return one == other
    for first, second in ((gold, stated), (stated, gold)):
        if isinstance(first, Collection) and first.brackets == "{}" and len(first.items) == 1:
            return not isinstance(second, Collection) and _same(first.items[0], second)
    if _is_set(gold) and _is_set(stated) and isinstance(gold, Operation) and isinstance(stated, Operation):
        same = gold.name == stated.name and _all_same(gold.operands, stated.operands)
        swapped = gold.name == stated.name != "difference" and _all_same(gold.operands, stated.operands[::-1])
        return same or swapped
    return False
