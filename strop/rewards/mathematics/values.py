"""Equality of expressions by value: rational numbers exactly, other numbers by their digits, functions by samples.

Two constants that are not rational are equal if their difference vanishes with the precision: it is computed to 50
digits and then to more than twice as many, beyond the digits of each number in them. Expressions with variables are
compared at rational points, where both are real; there all of this holds, too. A point proves that two expressions
differ; equality at all points is a proof up to a probability that is negligible for a polynomial of bounded degree
(Schwartz 1980, doi.org/10.1145/322217.322225).
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from mpmath.ctx_mp import MPContext
from mpmath.libmp import NoConvergence

from strop.rewards.graders import SizeLimitError
from strop.rewards.mathematics.nodes import (
    Constant,
    Node,
    Number,
    Operation,
    ParseError,
    Quantity,
    Symbol,
    symbols,
    walk,
)

MAX_BITS = 40_000
"""Maximum size of a number."""
MAX_FACTORIAL = 4000
"""Maximum number of factors of a factorial or a binomial coefficient."""
_DIGITS = 50
_FLOAT_DIGITS = range(16, 19)
"""Number of significant digits of a decimal that counts as a double-precision number."""
_MAX_DIGITS = 12_000
_MAX_DIGITS_OF_SAMPLES = 400
"""Maximum precision at the points of an expression with variables."""
_POINTS = 12

Value: TypeAlias = Any
"""A Fraction, or a real or complex number of mpmath."""


class UndefinedError(Exception):
    """An expression without a value, or without a real one at a point."""


class _Contexts(threading.local):
    """A context of mpmath for each thread, as its precision is a state."""

    def __init__(self) -> None:
        self.context = MPContext()


_CONTEXTS = _Contexts()


def same_value(one: Node, other: Node) -> bool:
    """Whether two expressions are equal, for all values of their variables for which both are defined."""
    names = sorted(symbols(one) | symbols(other))
    is_complex = any(node == Constant("i") for each in (one, other) for node in walk(each))
    if not names:
        try:
            return _same_at(one, other, {}, True)
        except UndefinedError:
            return False
    has_bars = any(
        isinstance(node, Operation) and node.name == "abs" and symbols(node)
        for each in (one, other)
        for node in walk(each)
    )
    for points in ("real", "complex"):
        compared = 0
        for number in range(_POINTS):
            place = {name: _coordinate(name, number, points == "complex" or has_bars) for name in names}
            try:
                if not _same_at(one, other, place, is_complex or has_bars or points == "complex"):
                    return False
            except UndefinedError:
                continue
            compared += 1
            if compared == 5:
                return True
        if compared >= 2:
            return True
    return False


def _coordinate(name: str, number: int, is_complex: bool) -> Value:
    """Coordinate of a point: positive ones first, then of both signs, then integers."""
    draw = random.Random(f"{name} {number}")
    if is_complex and number % 2:
        return _CONTEXTS.context.mpc(draw.uniform(-2, 2), draw.uniform(0.1, 2))
    if number >= 7:
        return Fraction(draw.randint(2, 14))
    value = Fraction(draw.randint(211, 2999), 1009)
    return -value if number in (2, 4, 6) and draw.random() < 0.7 else value


def _same_at(one: Node, other: Node, place: Mapping[str, Value], is_complex: bool) -> bool:
    first = _Evaluation(place, is_complex, _DIGITS)
    a, b = first.value(one), first.value(other)
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b or (not place and _is_double(one, other, a, b))
    context = _CONTEXTS.context
    if context.isinf(_number(context, a)) or context.isinf(_number(context, b)):
        return bool(_number(context, a) == _number(context, b))
    rough = abs(_number(context, a) - _number(context, b))
    digits = min(2 * _DIGITS + 10 + 2 * first.digits, _MAX_DIGITS_OF_SAMPLES if place else _MAX_DIGITS)
    second = _Evaluation(place, is_complex, digits)
    a, b = second.value(one), second.value(other)
    left, right = _number(context, a), _number(context, b)
    difference, scale = abs(left - right), max(abs(left), abs(right))
    if context.isnan(difference):
        raise UndefinedError
    if difference <= scale * context.mpf(10) ** (-digits // 2) or difference <= rough * context.mpf(10) ** (
        _DIGITS + 10 - digits
    ):
        return True
    return not place and _is_double(one, other, left, right)


def _is_double(one: Node, other: Node, a: Value, b: Value) -> bool:
    """Whether a constant rounds to a double-precision number, with whose digits the other constant is written.

    The last digit may be off by one. An integer is no rounded number.
    """
    written = [
        any(isinstance(each, Number) and each.digits in _FLOAT_DIGITS for each in walk(node))
        for node in (one, other)
    ]
    if not any(written) or not (_is_real(a) and _is_real(b)):
        return False
    exact = b if written[0] else a
    if isinstance(exact, Fraction) and exact.denominator == 1:
        return False
    return bool(abs(float(a) - float(b)) <= math.ulp(float(exact)))


def compare(one: Node, other: Node) -> int:
    """-1, 0 or 1 for a constant below, equal to or above another. Raises UndefinedError if they are not real."""
    if symbols(one) or symbols(other):
        raise UndefinedError
    if same_value(one, other):
        return 0
    context = _CONTEXTS.context
    evaluation = _Evaluation({}, True, 2 * _DIGITS)
    a, b = (_number(context, evaluation.value(each)) for each in (one, other))
    if context.isnan(a) or context.isnan(b) or not (_is_real(a) and _is_real(b)):
        raise UndefinedError
    return -1 if a < b else 1


def is_rounding(exact: Node, rounded: Node) -> bool:
    """Whether a number is a rounding of another to the digits that are written."""
    if not isinstance(rounded, Number):
        if isinstance(rounded, Operation) and rounded.name == "-" and isinstance(rounded.operands[0], Number):
            return is_rounding(Operation("-", (exact,)), rounded.operands[0])
        return same_value(exact, rounded)
    zeros = len(str(rounded.value)) - len(str(rounded.value).rstrip("0"))
    unit = Fraction(10) ** (-rounded.places if rounded.digits else zeros)
    half = Number(unit / 2 * Fraction(1001, 1000))
    try:
        return (
            compare(Operation("+", (rounded, Operation("-", (half,)))), exact) <= 0
            and compare(exact, Operation("+", (rounded, half))) <= 0
        )
    except UndefinedError:
        return False


def number_of(node: Node) -> Fraction | None:
    """Rational value of a constant; None for another value or an undefined expression."""
    if symbols(node):
        return None
    try:
        value = _Evaluation({}, True, _DIGITS).value(node)
    except (UndefinedError, ParseError):
        return None
    return value if isinstance(value, Fraction) else None


class _Evaluation:
    """Value of a node at a point, exact as long as it is rational."""

    def __init__(self, place: Mapping[str, Value], is_complex: bool, digits: int) -> None:
        self._place = place
        self._is_complex = is_complex
        self._context = _CONTEXTS.context
        self._context.dps = digits
        self.digits = 0
        """Largest number of digits of a rational number that was rounded."""

    def value(self, node: Node) -> Value:
        """Value of a node. Raises UndefinedError, and SizeLimitError for a number that is too large."""
        match node:
            case Number(value, _):
                return value
            case Symbol(name):
                return self._place[name]
            case Quantity(value, _):
                return self.value(value)
            case Constant("pi"):
                return +self._context.pi
            case Constant("e"):
                return +self._context.e
            case Constant("i"):
                return self._context.mpc(0, 1)
            case Constant("infinity"):
                return self._context.inf
            case Operation(name, operands):
                return self._operation(name, operands)
            case _:
                raise ParseError(f"{type(node).__name__} in an expression")

    def _operation(self, name: str, operands: tuple[Node, ...]) -> Value:
        values = [self.value(each) for each in operands]
        try:
            result = self._computed(name, values)
        except (ValueError, TypeError, ArithmeticError, NoConvergence) as error:
            if isinstance(error, OverflowError):
                raise SizeLimitError("a number is too large") from error
            raise UndefinedError from error
        if isinstance(result, Fraction):
            if max(result.numerator.bit_length(), result.denominator.bit_length()) > MAX_BITS:
                raise SizeLimitError(f"the answer has a number of more than {MAX_BITS} bits")
        elif self._context.isnan(result):
            raise UndefinedError
        return result

    def _rounded(self, value: Value) -> Value:
        """The number in the context's precision."""
        if isinstance(value, Fraction):
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
            self.digits = max(self.digits, int(bits / 3.32) + 1)
        return _number(self._context, value)

    def _computed(self, name: str, values: list[Value]) -> Value:
        context = self._context
        match name:
            case "+" | "*":
                exact = [value for value in values if isinstance(value, Fraction)]
                result: Value = sum(exact, Fraction(0)) if name == "+" else _exact_product(exact)
                for value in values:
                    if not isinstance(value, Fraction):
                        rounded = self._rounded(result)
                        result = rounded + value if name == "+" else rounded * value
                return result
            case "-":
                return -values[0]
            case "reciprocal":
                if values[0] == 0:
                    raise UndefinedError
                return 1 / values[0]
            case "/":
                if values[1] == 0:
                    raise UndefinedError
                if all(isinstance(value, Fraction) for value in values):
                    return values[0] / values[1]
                return self._rounded(values[0]) / self._rounded(values[1])
            case "^":
                return self._power(*values)
            case "root":
                return self._power(values[0], 1 / values[1]) if values[1] != 0 else self._undefined()
            case "percent":
                return values[0] / 100
            case "degree":
                return self._rounded(values[0]) * context.pi / 180
            case "abs":
                return abs(values[0])
            case "factorial":
                return self._factorial(values[0])
            case "binomial":
                return self._binomial(*values)
            case "mod":
                return values[0] % values[1]
            case "floor" | "ceil":
                rounding = math.floor if name == "floor" else math.ceil
                if isinstance(values[0], Fraction):
                    return Fraction(rounding(values[0]))
                return Fraction(int(context.floor(values[0]) if name == "floor" else context.ceil(values[0])))
            case "max" | "min":
                return (max if name == "max" else min)(values)
            case "gcd" | "lcm":
                integers = [_integer(value) for value in values]
                return Fraction((math.gcd if name == "gcd" else math.lcm)(*integers))
            case "exp":
                return self._power(+context.e, values[0])
            case "log" | "ln" | "lg":
                return self._logarithm(name, values)
            case "cbrt":
                return self._power(values[0], Fraction(1, 3))
            case "sqrt":
                return self._power(values[0], Fraction(1, 2))
            case _:
                return self._function(name, values)

    def _undefined(self) -> Value:
        raise UndefinedError

    def _function(self, name: str, values: list[Value]) -> Value:
        function = _FUNCTIONS.get(name)
        if function is None or len(values) != 1:
            raise ParseError(f"the function {name}")
        value = self._rounded(values[0])
        if self._context.mag(value) > 10_000:
            raise SizeLimitError(f"an argument of {name} is too large")
        result = function(self._context, value)
        if not self._is_complex and not _is_real(result) and _is_real(value):
            raise UndefinedError
        return result

    def _logarithm(self, name: str, values: list[Value]) -> Value:
        context = self._context
        argument = self._rounded(values[0])
        base = self._rounded(values[1]) if len(values) > 1 else None
        if argument == 0 or (base is not None and (base == 0 or base == 1)):
            raise UndefinedError
        if (
            not self._is_complex
            and self._place
            and any(_is_real(each) and each < 0 for each in (argument, base or 1))
        ):
            raise UndefinedError
        if base is not None:
            return context.ln(argument) / context.ln(base)
        return context.ln(argument) if name == "ln" else context.ln(argument) / context.ln(10)

    def _power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
            number = int(exponent)
            if base == 0 and number <= 0:
                raise UndefinedError
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if base not in (0, 1, -1) and bits * abs(number) > MAX_BITS:
                if self._place:
                    return self._rounded(base) ** number
                raise SizeLimitError(f"the answer has a number of more than {MAX_BITS} bits")
            return base**number if base not in (1, -1) else base ** (number % 2)
        context = self._context
        if base == 0:
            if _is_real(exponent) and exponent > 0:
                return Fraction(0)
            raise UndefinedError
        rounded, power = self._rounded(base), self._rounded(exponent)
        if context.isinf(rounded) or context.isinf(power):
            raise UndefinedError
        if _is_real(rounded) and rounded < 0 and isinstance(exponent, Fraction) and exponent.denominator % 2:
            root = (-rounded) ** power
            return -root if exponent.numerator % 2 else root
        if not self._is_complex and _is_real(rounded) and rounded < 0 and self._place:
            raise UndefinedError
        if abs(power) * abs(context.ln(abs(rounded))) > MAX_BITS or context.mag(power) > 64:
            raise SizeLimitError(f"the answer has a number of more than {MAX_BITS} bits")
        return rounded**power

    def _factorial(self, value: Value) -> Value:
        if isinstance(value, Fraction) and value.denominator == 1:
            if value < 0:
                raise UndefinedError
            if value > MAX_FACTORIAL:
                raise SizeLimitError("a factorial is too large")
            return Fraction(math.factorial(int(value)))
        if abs(value) > MAX_FACTORIAL:
            raise SizeLimitError("a factorial is too large")
        return self._context.gamma(self._rounded(value) + 1)

    def _binomial(self, above: Value, below: Value) -> Value:
        if all(isinstance(each, Fraction) and each.denominator == 1 and each >= 0 for each in (above, below)):
            n, k = int(above), int(below)
            k = min(k, n - k)
            if k > MAX_FACTORIAL or k * max(n.bit_length(), 1) > MAX_BITS:
                raise SizeLimitError("a binomial coefficient is too large")
            return Fraction(math.comb(n, k) if k >= 0 else 0)
        if max(abs(above), abs(below)) > MAX_FACTORIAL:
            raise SizeLimitError("a binomial coefficient is too large")
        return self._context.binomial(self._rounded(above), self._rounded(below))


def _number(context: MPContext, value: Value) -> Value:
    if isinstance(value, Fraction):
        return context.mpf(value.numerator) / value.denominator
    return value


def _exact_product(factors: list[Fraction]) -> Fraction:
    bits = sum(max(factor.numerator.bit_length(), factor.denominator.bit_length()) for factor in factors)
    if bits > 4 * MAX_BITS:
        raise SizeLimitError(f"the answer has a number of more than {MAX_BITS} bits")
    return math.prod(factors, start=Fraction(1))


def _is_real(value: Value) -> bool:
    return isinstance(value, Fraction) or value.imag == 0


def _integer(value: Value) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise UndefinedError
    return int(value)


def _method(name: str) -> Callable[[MPContext, Value], Value]:
    return lambda context, value: getattr(context, name)(value)


_FUNCTIONS = {
    **{
        name: _method(name)
        for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "coth", "arg")
    },
    **{f"arc{name}": _method(f"a{name}") for name in ("sin", "cos", "tan", "cot", "sinh", "cosh", "tanh")},
    **{f"ar{name}": _method(f"a{name}") for name in ("sinh", "cosh", "tanh")},
    "Re": _method("re"),
    "Im": _method("im"),
    "sgn": _method("sign"),
}
"""Functions of one argument."""
