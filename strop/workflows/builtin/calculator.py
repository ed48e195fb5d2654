"""Arithmetic tool; the model's expression is parsed and never executed as Python."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_MAX_CHARS = 1000
_MAX_EXPONENT = 1000


def calculator(expression: str) -> str:
    """Compute an arithmetic expression.

    Args:
        expression: Numbers, parentheses, and + - * / // % **, such as "(3 + 4) * 2".
    """
    if len(expression) > _MAX_CHARS:
        raise ValueError(f"the expression is longer than {_MAX_CHARS} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"{expression!r} is not an arithmetic expression") from None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value)


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            first, second = _value(left), _value(right)
            if isinstance(op, ast.Pow) and (abs(second) > _MAX_EXPONENT or abs(first) > 1e6):
                raise ValueError("this power is too large")
            result = _BINARY[type(op)](first, second)
            if isinstance(result, complex) or not math.isfinite(result):
                raise ValueError("the result is not a finite real number")
            return result
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand))
    raise ValueError(f"{ast.unparse(node)!r} is not arithmetic")
