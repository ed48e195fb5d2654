"""`math` and `math_in_text`: answers in LaTeX or plain text, compared as mathematical objects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from sympy import Basic

from strop.rewards.builtin.math_limits import MAX_CHARS, check_latex
from strop.rewards.builtin.math_text import (
    answers_in_text,
    is_same_text,
    last_boxed,
    mathematical_answer_text,
    plain_text,
    stated_answer,
)
from strop.rewards.graders import SizeLimitError, zero_beyond_limits
from strop.rewards.mathematics.equality import is_equal
from strop.rewards.mathematics.nodes import Node, ParseError, Quantity, UnsupportedError, walk
from strop.rewards.mathematics.parser import parse_answer

_DECIMAL = re.compile(r"\s*-?\d+\.\d+\s*")
_DECIMAL_COMMA = re.compile(r"\s*(-?\d+),(\d+)\s*")
_CHOICE = re.compile(r"(?:(?i:option|choice)\s*)?\(?([A-Z])\)?")
_STATED_CHOICE = re.compile(
    r"\W*(?:\\text(?:bf)?\s*\{\s*)?\(?([A-Z])(?:\)|[.:])(?:\s*\})?(?:\s|\\[ ,~]|~)*\S.*", re.DOTALL
)


_SYMPY_ERRORS = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, NotImplementedError)
"""Errors of sympy on expressions without a meaning, such as the integral of a matrix."""


@zero_beyond_limits
def math_reward(completion: str, answer: Any, *, method: Literal["strict", "flexible"] = "strict") -> float:
    r"""1 if the completion's answer equals the task's answer, else 0.

    `strict` reads the last `\boxed{...}`; if there is none, the rest of the line after the last `Answer:`.
    `flexible` also reads the end of a text without a box: the last formula or number, or the one after the last
    `answer is`. `answer` is LaTeX, with or without `\boxed{}` or dollar signs around it, a number, or a solution in the
    form of GSM8K, whose part after `####` counts. An answer that is too large to evaluate (see `math_limits`) is equal
    only to the same text.

    Raises ValueError for a task's answer that is null, NaN, infinite, empty, or a number with a trailing period.
    """
    gold = _gold(mathematical_answer_text(answer))
    if method == "flexible" and last_boxed(completion) is None:
        return float(any(_agrees(gold, found) for found in answers_in_text(completion)))
    stated = stated_answer(completion)
    return float(stated is not None and bool(stated.strip()) and _agrees(gold, stated))


@dataclass(frozen=True, slots=True)
class _Gold:
    """The task's answer: as text, and parsed."""

    latex: str
    readings: list[Node]
    """Parsed answer; empty for text that is not mathematics."""
    is_unsupported: bool
    """Whether it has an operator that math-verify evaluates."""
    is_evaluable: bool
    """Whether it is within the limits."""
    max_chars: int
    """Maximum length of an answer that is compared with it."""


@lru_cache(maxsize=1024)
def _gold(answer: str) -> _Gold:
    """Parsed answer of the task; parsed once for all responses of a group."""
    answer = answer.rpartition("####")[2]
    inside = last_boxed(answer)
    latex = answer.strip().strip("$") if inside is None else inside
    max_chars = MAX_CHARS + 4 * len(latex)
    try:
        check_latex(latex, max_chars)
        return _Gold(latex, *_readings(latex), True, max_chars)
    except (SizeLimitError, RecursionError):
        return _Gold(latex, [], False, False, max_chars)


def _readings(latex: str) -> tuple[list[Node], bool]:
    """Readings of an answer, and whether it has an operator that only math-verify evaluates."""
    try:
        return parse_answer(latex), False
    except UnsupportedError:
        return [], True
    except ParseError:
        return [], False


def _agrees(gold: _Gold, stated: str) -> bool:
    """Whether a stated answer equals the task's answer."""
    if is_same_text(stated, gold.latex):
        return True
    if not gold.is_evaluable:
        raise SizeLimitError("the task's answer is too large to evaluate")
    check_latex(stated, gold.max_chars)
    comma = _DECIMAL_COMMA.fullmatch(stated)
    if comma is not None and _DECIMAL.fullmatch(gold.latex):
        stated = f"{comma[1]}.{comma[2]}"
    readings, is_unsupported = _readings(stated)
    if gold.readings and readings:
        if any(is_equal(one, other) for one in gold.readings for other in readings):
            return True
        if _has_unit(gold.readings) != _has_unit(readings) and _agrees_in_units(gold.latex, stated):
            return True
    elif is_unsupported or gold.is_unsupported:
        return _agrees_by_math_verify(gold, stated)
    plain = plain_text(gold.latex)
    if plain == plain_text(stated):
        return not gold.readings or not readings or gold.readings == readings
    choice = _CHOICE.fullmatch(plain)
    stated_choice = _CHOICE.fullmatch(plain_text(stated)) or _STATED_CHOICE.fullmatch(stated)
    return choice is not None and stated_choice is not None and choice[1] == stated_choice[1]


def _has_unit(readings: list[Node]) -> bool:
    return any(isinstance(node, Quantity) for reading in readings for node in walk(reading))


def _agrees_in_units(gold: str, stated: str) -> bool:
    """Whether two answers are equal where a letter after a number is a unit in both."""
    try:
        both = [parse_answer(latex, units=True) for latex in (gold, stated)]
    except ParseError:
        return False
    return all(map(_has_unit, both)) and any(is_equal(one, other) for one in both[0] for other in both[1])


def _agrees_by_math_verify(gold: _Gold, stated: str) -> bool:
    """Equality of answers with sums, integrals, limits or derivatives, by the values that sympy gives them."""
    golds = gold.readings or _evaluated(gold.latex, gold.max_chars)
    return any(is_equal(one, other) for other in _evaluated(stated, gold.max_chars) for one in golds)


def _evaluated(text: str, max_chars: int) -> list[Node]:
    """Readings of an answer, or of its value; empty for one that sympy cannot evaluate."""
    from sympy import latex

    from strop.rewards.builtin.math_verify_search import parse_boxed

    readings, is_unsupported = _readings(text)
    if not is_unsupported:
        return readings
    found = parse_boxed(text, max_chars)
    try:
        value = found[0].doit() if found and isinstance(found[0], Basic) else None
    except _SYMPY_ERRORS:
        return []
    return [] if value is None else _readings(latex(value))[0]


def math_in_text_reward(completion: str, answer: Any) -> float:
    """1 if the end of the completion states the task's answer, in any form, else 0.

    The role of Trinity-RFT's accuracy reward: `math` with the method `flexible`. Raises ValueError as `math` does.
    """
    return math_reward(completion, answer, method="flexible")
