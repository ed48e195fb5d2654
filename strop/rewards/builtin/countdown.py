"""`countdown`: reach a target from given numbers with +, -, * and / (as in TinyZero)."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal

from strop.rewards.builtin.math_text import last_tagged
from strop.rewards.graders import zero_beyond_limits
from strop.workers.json_text import parse_json

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_MAX_CHARS = 1000
"""Maximum length of an expression; no correct expression of a few numbers is longer."""


@zero_beyond_limits
def countdown_reward(
    completion: str, answer: Any, *, numbers: Literal["all", "some"] = "all", format_score: float = 0.0
) -> float:
    """1 if the last `<answer>...</answer>` is an expression that equals the target, else 0.

    The expression uses each given number exactly once; with `numbers="some"`, at most once. `answer` is a
    mapping with `target` and `numbers`, or such a mapping as JSON. A wrong answer inside the tags gets
    `format_score`. The arithmetic uses exact fractions, so 1/3 times 3 is 1.

    Raises ValueError if the answer is not such a mapping.
    """
    target, given = _game(answer)
    stated = last_tagged(completion)
    if stated is None:
        return 0.0
    result = evaluate(stated)
    if result is None:
        return format_score
    value, used = result
    allowed = Counter(used) == Counter(given) if numbers == "all" else Counter(used) <= Counter(given)
    return 1.0 if allowed and value == target else format_score


def _game(answer: Any) -> tuple[Fraction, list[int]]:
    game = answer
    if isinstance(answer, str):
        with contextlib.suppress(ValueError):  # the error below shows the text
            game = parse_json(answer)
    if not isinstance(game, Mapping) or not {"target", "numbers"} <= set(game):
        raise ValueError(f"the task's answer must have `target` and `numbers`, got {answer!r}")
    return Fraction(int(game["target"])), [int(number) for number in game["numbers"]]


def evaluate(text: str) -> tuple[Fraction, list[int]] | None:
    """Value of an expression and the numbers in it; None if it is invalid or divides by zero."""
    if len(text) > _MAX_CHARS:
        return None
    used: list[int] = []
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body, used)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return value, used


def _value(node: ast.expr, used: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            used.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, used)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, used), _value(right, used))
    raise ValueError(f"{type(node).__name__} is not allowed in the expression")
