"""`gsm8k`: grade-school mathematics whose answer is one number (arXiv 2110.14168)."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from strop.rewards.builtin.math_text import answer_text
from strop.rewards.graders import SizeLimitError, zero_beyond_limits
from strop.rewards.mathematics.equality import is_equal
from strop.rewards.mathematics.nodes import Node, Number, Operation, ParseError, Quantity, Relation
from strop.rewards.mathematics.parser import parse_answer
from strop.rewards.mathematics.units import MULTIPLES
from strop.rewards.mathematics.values import number_of

_MAX_CHARS = 1000
"""Maximum length of the statement after `####`."""
_MARKED = re.compile(r"####\s*+([^\n#]*+)")
_PLAIN = re.compile(r"\$?(-?)\$?(\d{1,3}(?:,\d{3})*+|\d++)(?:\.(\d++))?\.?")
_FORMULA = re.compile(r"(?:[\d\s.,;$€£%+\-−–*/^=×÷(){}\[\]:!°_]|(?<=\d)[eE](?=[-+]?\d)|\\[a-zA-Z]++|\\.)++")
_WORD = re.compile(r"[A-Za-z]++")
_FURTHER = re.compile(r"(?:or|and|to)\b\s*\$?\d")
_REMARK = re.compile(r"(?<=[\d%}])\s+\(")
_NUMBER = r"(?:(?<![\d)])[-−])?\$?(?:\d(?:[\d,]|\{,\})*+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
"""A minus sign after a digit or a bracket is a subtraction; elsewhere it is part of the number."""
_ANYWHERE = re.compile(rf"{_NUMBER}(?:\s?[/:^]\s?{_NUMBER})*+")


@zero_beyond_limits
def gsm8k_reward(completion: str, answer: Any, *, method: Literal["strict", "flexible"] = "strict") -> float:
    """1 if the number that the completion states equals the answer, else 0.

    `strict` reads the last line with `####` and a number, the ending of the dataset's own solutions: the entire
    expression counts, so `3/4` is 0.75, `5 + 3 = 8` is 8, and `7 or 8` is no answer. `flexible` reads the last number
    of the text, with a fraction, a power or a time that it is part of. Numbers are compared by value, without commas
    (also LaTeX's `1{,}234`), currency and percent signs, units, emphasis and trailing periods. `answer` is a number or
    a text with one; in a complete solution, the part after `####` counts.

    Raises ValueError if the answer has no number.
    """
    expected = expected_number(answer)
    if method == "flexible":
        numbers = _ANYWHERE.findall(completion)
        return float(bool(numbers) and _states(numbers[-1], expected))
    lines = [line for line in _MARKED.findall(completion) if any(each.isdigit() for each in line)]
    return float(bool(lines) and _states(lines[-1], expected))


def expected_number(answer: Any) -> Fraction:
    """Number of the task's answer. Raises ValueError if it has none."""
    return _number_in(answer_text(answer))


@lru_cache(maxsize=1024)
def _number_in(answer: str) -> Fraction:
    stated = answer.rsplit("####", 1)[-1]
    plain = _plain_number(stated)
    if plain is not None:
        return plain
    for node in _readings(stated):
        value = number_of(_without_mark(node.sides[-1] if isinstance(node, Relation) else node))
        if value is not None:
            return value
    raise ValueError(f"the task's answer {answer!r} has no number")


def _states(text: str, expected: Fraction) -> bool:
    """Whether a statement is the expected number."""
    plain = _plain_number(text)
    if plain is not None:
        return plain == expected
    number = Number(expected)
    return any(is_equal(number, _without_mark(node)) for node in _readings(text))


def _plain_number(text: str) -> Fraction | None:
    found = _PLAIN.fullmatch(text.strip())
    if found is None or len(text) > _MAX_CHARS:
        return None
    sign, whole, fraction = found[1], found[2].replace(",", ""), found[3] or ""
    return Fraction(int(f"{sign}{whole}{fraction}"), 10 ** len(fraction))


def _without_mark(node: Node) -> Node:
    """A value without its unit or percent sign."""
    if isinstance(node, Operation) and node.name == "-":
        return Operation("-", (_without_mark(node.operands[0]),))
    if isinstance(node, Operation) and node.name == "percent":
        return node.operands[0]
    return node.value if isinstance(node, Quantity) else node


def _readings(line: str) -> list[Node]:
    """Readings of the formula at the beginning of a line, or of the line if it begins with a word."""
    line = line.strip()
    if len(line) > _MAX_CHARS:
        if " " not in line[:_MAX_CHARS]:
            raise SizeLimitError(f"the answer has more than {_MAX_CHARS} characters")
        line = line[:_MAX_CHARS]
    for text in (_leading_formula(line), line):
        try:
            if text is not None:
                return parse_answer(text)
        except ParseError:
            continue
    return []


def _leading_formula(line: str) -> str | None:
    """The formula before the first word, with a multiple (`million`) or a unit that is attached to it.

    None for a line that begins with a word or states further numbers.
    """
    found = _FORMULA.match(line)
    if found is None or not any(each.isdigit() for each in found[0]):
        return None
    formula, rest = found[0], line[found.end() :]
    word = _WORD.match(rest)
    if word is not None and _FURTHER.match(rest):
        return line
    if word is not None and (word[0].lower() in MULTIPLES or formula[-1].isdigit()):
        return formula + word[0]
    remark = _REMARK.search(formula)
    return formula.rstrip(" ([{") if remark is None else formula[: remark.start()]
