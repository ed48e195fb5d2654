"""`math`: LaTeX answers, compared by math-verify as mathematical expressions."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Basic, Float, Rational

from strop.rewards.builtin.math_limits import MAX_CHARS, check_expression, check_latex
from strop.rewards.builtin.math_text import (
    approximation,
    is_same_text,
    last_boxed,
    rounding_error,
    spellings,
    without_percent,
)
from strop.rewards.limits import SizeLimitError, zero_beyond_limits

_EXTRACTION = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_ANSWER_LINE = re.compile(r"(?i:answer)\**+\s*:(.+)")
_FORMULA_BORDER = re.compile(r"(\$+|\\[()\[\]])")
_MAX_SEARCHED_CHARS = 8000
"""Length of the end of a response that `flexible` searches; the work is quadratic in it."""

# math-verify warns that its own time limits are off. They use SIGALRM, which works in a main thread only; the
# limit of `execution/worker.py` works in any thread.
logging.getLogger("math_verify").setLevel(logging.ERROR)


@zero_beyond_limits
def math_reward(completion: str, answer: Any, *, method: Literal["strict", "flexible"] = "strict") -> float:
    r"""1 if the completion's answer equals the task's answer, else 0.

    `strict` reads the last `\boxed{...}`; if there is none, the rest of the line after the last `Answer:`.
    `flexible` lets math-verify search the end of the text. `answer` is LaTeX, with or without `\boxed{}` or dollar
    signs around it, or a number. An answer that is too large to evaluate (see `math_limits`) is equal only to the
    same text.

    Raises ValueError if the task's answer cannot be parsed.
    """
    gold = _gold(str(answer))
    if method == "flexible" and (stated := last_boxed(completion)) is None:
        return float(_agrees(gold, answers_in_text(completion)))
    if method == "strict":
        stated = _stated(completion)
    if stated is None or not stated.strip():
        return 0.0
    if is_same_text(stated, gold.latex):
        return 1.0
    return float(_is_equal(gold, stated))


@dataclass(frozen=True, slots=True)
class _Gold:
    """The task's answer: as text, and parsed."""

    latex: str
    parsed: list[Any]
    is_evaluable: bool
    """Whether it is within the limits."""
    max_chars: int
    """Maximum length of an answer that is compared with it."""


@lru_cache(maxsize=1024)
def _gold(answer: str) -> _Gold:
    """Parsed answer of the task; parsed once for all responses of a group."""
    inside = last_boxed(answer)
    latex = answer.strip().strip("$") if inside is None else inside
    max_chars = MAX_CHARS + 4 * len(latex)
    try:
        check_latex(latex, max_chars)
        parsed = _parse(latex)
        check_expression(parsed[0] if parsed else None)
    except SizeLimitError:
        return _Gold(latex, [latex], False, max_chars)
    if not parsed:
        raise ValueError(f"the task's answer {answer!r} cannot be parsed as mathematics")
    return _Gold(latex, parsed, True, max_chars)


def _parse(latex: str) -> list[Any]:
    return list(parse(f"\\boxed{{{latex}}}", _EXTRACTION, parsing_timeout=None))


def _stated(text: str) -> str | None:
    inside = last_boxed(text)
    if inside is None:
        lines = _ANSWER_LINE.findall(text)
        inside = lines[-1].lstrip("$* ").rstrip("$*. ") if lines else None
    return inside


def _is_equal(gold: _Gold, stated: str) -> bool:
    """Whether the answer, in any spelling, equals the task's answer, or the task's percentage its number."""
    if not gold.is_evaluable:
        raise SizeLimitError("the task's answer is too large to evaluate")
    check_latex(stated, gold.max_chars)
    if _is_wrong_approximation(gold, stated):
        return False
    golds = [gold]
    number = without_percent(gold.latex)
    if number is not None and without_percent(stated) is None:
        golds.append(_gold(number))
    return any(_agrees(each, _parsed(latex, gold)) for latex in spellings(stated) for each in golds)


def _parsed(latex: str, gold: _Gold) -> list[Any]:
    """The parsed answer, and the answer with its decimals as fractions. Raises SizeLimitError."""
    check_latex(latex, gold.max_chars)
    found = _parse(latex)
    if found and isinstance(found[0], Basic) and found[0].has(Float) and not isinstance(found[0], Float):
        found.append(found[0].replace(lambda node: node.is_Float, lambda node: Rational(str(node))))
    return found


def _agrees(gold: _Gold, found: list[Any]) -> bool:
    if found and type(found[0]) is type(gold.parsed[0]) and found[0] == gold.parsed[0]:
        return True
    for each in found:
        check_expression(each)
    return bool(verify(gold.parsed, found, timeout_seconds=None, allow_set_relation_comp=True))


def _is_wrong_approximation(gold: _Gold, stated: str) -> bool:
    r"""Whether the answer is `a \approx b` where b is not a rounding of a."""
    sides = approximation(stated)
    if sides is None:
        return False
    left, right = (_parsed(side, gold) for side in sides)
    if not (
        left and right and all(isinstance(side[0], Basic) and side[0].is_number for side in (left, right))
    ):
        return False
    return bool(abs(left[0].evalf() - right[0].evalf()) > rounding_error(sides[1]) * 1.001)


def answers_in_text(text: str) -> list[Any]:
    """Answers that math-verify finds in the end of a text; formulas beyond the limits are left out."""
    return checked_answers(text, _EXTRACTION)


def checked_answers(
    text: str, extraction: Sequence[LatexExtractionConfig | ExprExtractionConfig]
) -> list[Any]:
    """Answers of the given kinds that math-verify finds in the end of a text.

    Formulas beyond the limits are left out. Raises SizeLimitError for an answer beyond them.
    """
    pieces = _FORMULA_BORDER.split(text[-_MAX_SEARCHED_CHARS:])
    if len(pieces) > 1 or "^" in text or "**" in text:
        pieces = [_harmless(piece) for piece in pieces]
    found = list(parse("".join(pieces), extraction, parsing_timeout=None))
    for each in found:
        check_expression(each)
    return found


def _harmless(piece: str) -> str:
    """The text between two borders of formulas, or a space if it has a formula that exceeds a limit."""
    is_prose = piece.count(" ") > len(piece) / 50
    try:
        check_latex(piece, _MAX_SEARCHED_CHARS if is_prose else MAX_CHARS)
    except SizeLimitError:
        return " "
    return piece
