r"""Equality of expressions by value, as PRM800K's grader (arXiv 2305.20050) and ToRA's (arXiv 2309.17452) have it.

Where these graders give a text to sympy, `math` compares the two expressions here: it evaluates no code, and its work
is bounded.
"""

from __future__ import annotations

import math
import re

from strop.compat.scorers import hendrycks
from strop.compat.scorers.boxed import braced
from strop.rewards.builtin.math import math_reward

_TOLERANCE = 1e-4
_MAX_CHARS = 1000
"""Length from which on the commands of an answer are not read."""
_UNITS = (
    *("degree", "cm", "centimeter", "meter", "mile", "second", "minute", "hour"),
    *("day", "week", "month", "year", "foot", "feet", "inch", "yard"),
    "liter",
)
_UNIT = re.compile(rf"(?:{'|'.join(_UNITS)})(?:es)?s? *(?:\^[0-9]+)?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?:\D|$))")
_WHOLE_TEXT = re.compile(r"^\\text\{(.+?)\}$")
_NAMES = {
    "\\cdot": "*",
    "\\times": "*",
    "\\pi": "pi",
    "\\infty": "inf",
    "\\cup": "U",
    "\\sqrt": "sqrt",
    "\\frac": "",
}
_RATIO = re.compile(r"-?[0-9]+.?/0*[1-9][0-9]*.?")
_EXPONENT = re.compile(r"\^[{(]|\^[0-9]+\^|\^[0-9]{2,}")
_AMOUNT = re.compile(r"\$\d")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\\?%")
_BASE = re.compile(r"\d_\{?(\d+)")
_QUOTIENT = re.compile(r"(-?\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?))?")
_TIMES_PI = re.compile(r"(-?\d*(?:\.\d+)?) *\\pi")


def is_equal_prm800k(answer: str, truth: str) -> bool:
    """Whether two answers are the same text after normalization, or equal expressions element by element.

    A fraction that is not reduced, and an expression where the truth is an integer, are wrong.
    """
    if hendrycks.is_equal(_inner_text(answer), _inner_text(truth)):
        return True
    given, expected = _plain(answer), _plain(truth)
    if given == expected:
        return True
    if not given or not expected:
        return False
    left, right = _elements(given), _elements(expected)
    if len(left) != len(right) or (len(right) > 1 and (given[0], given[-1]) != (expected[0], expected[-1])):
        return False
    return all(map(_may_be_equal, left, right)) and _same_expression(answer, truth)


def is_equal_tolerant(answer: str, truth: str) -> bool:
    """Whether two answers are equal numbers, up to a relative error of 1e-4 and a factor of 100, equal lists of such
    numbers, or equal expressions."""
    given, expected = _amount(answer[:_MAX_CHARS]), _amount(truth)
    if given.strip().lower() == expected.strip().lower() or _no_spaces(given) == _no_spaces(expected):
        return True
    numbers, truths = _numbers(given), _numbers(expected)
    if numbers and truths:
        return any(_is_close(number, each) for number in numbers for each in truths)
    if not given:
        return False
    if _no_brackets(given, expected) == _no_brackets(expected, given):
        return True
    if "," in given and "," in expected:
        parts, wanted = _list_parts(given, expected), _list_parts(expected, given)
        return len(parts) == len(wanted) and all(map(is_equal_tolerant, parts, wanted))
    value, wanted_value = _quotient(given), _quotient(expected)
    if value is not None and wanted_value is not None:
        return math.isclose(value, wanted_value, rel_tol=_TOLERANCE)
    return _same_expression(answer, truth)


def _same_expression(answer: str, truth: str) -> bool:
    if "#" in answer:  # prose with a mark of GSM8K
        return False
    if _BASE.findall(answer) != _BASE.findall(truth):
        return False
    try:
        return math_reward(f"\\boxed{{{answer}}}", truth) == 1.0
    except ValueError:  # the truth is no expression
        return False


def _inner_text(answer: str) -> str:
    whole = _WHOLE_TEXT.search(answer.strip())
    return answer.strip() if whole is None else whole[1].strip()


def _plain(answer: str) -> str:
    """The answer in lower case without commands, units, spaces, braces, dollar and percent signs."""
    text = answer if (whole := _WHOLE_TEXT.search(answer)) is None else whole[1]
    text = text.replace("\\%", "").replace("%", "").replace("\\$", "").replace("$", "")
    text = text.replace(" or ", " , ").replace(" and ", " , ")
    for name, power in (("million", 6), ("billion", 9), ("trillion", 12)):
        text = text.replace(name, f"*10^{power}")
    text = re.sub(r"\^ *\\circ", "", _UNIT.sub("", text))
    text = re.sub(r",\\! *", "", text).replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac")
    text = _with_plain_arguments(re.sub(r"\\text *\{([^{}]*)\}", r"\1", text))
    for command, plain in _NAMES.items():
        text = text.replace(command, plain)
    text = re.sub(r"\\(?:left|right|,|;|!| )", "", text)
    text = re.sub(r"([0-9]) +([0-9])", r"\1+\2", re.sub("- *", "-", text.strip()))
    text = re.sub(r"[{}\s]", "", text).lower()
    return str(int(_number(text))) if _is_integer(text) else text


def _with_plain_arguments(text: str) -> str:
    r"""The text with `a/b` for `\frac{a}{b}` and `\frac ab`, and `sqrt(a)` for `\sqrt{a}`; a long text itself."""
    if len(text) > _MAX_CHARS:
        return text
    for command in ("\\sqrt", "\\frac"):
        before, found, rest = text.rpartition(command)
        while found:
            first, rest = _argument(rest)
            if command == "\\sqrt":
                text = f"{before}sqrt({first}){rest}"
            else:
                second, rest = _argument(rest)
                text = f"{before} {_as_factor(first)}/{_as_factor(second)}{rest}"
            before, found, rest = text.rpartition(command)
    return text


def _argument(text: str) -> tuple[str, str]:
    """The argument of a command, in braces or of one character, and the text after it."""
    text = text.lstrip(" ")
    inside = braced(text, 0) if text.startswith("{") else text[:1]
    if inside is None:  # the braces are not closed
        return text, ""
    return inside, text[len(inside) + 2 :] if text.startswith("{") else text[1:]


def _as_factor(text: str) -> str:
    return f"({text})" if any(sign in text[1:] for sign in "+-/") else text


def _elements(text: str) -> list[str]:
    text = _THOUSANDS.sub("", text)
    inside = text[1:-1]
    is_tuple = len(text) > 2 and text[0] in "([" and text[-1] in ")]" and not any(c in inside for c in "()[]")
    return inside.split(",") if is_tuple else [text]


def _may_be_equal(given: str, expected: str) -> bool:
    """Whether equality of two elements that differ as text may be decided by their values."""
    if given == expected:
        return True
    if _RATIO.fullmatch(given) and _RATIO.fullmatch(expected):
        return False
    letters = {c for c in (given + expected).replace("sqrt", "").replace("frac", "") if c.isalpha()}
    is_simple = len(letters) <= 2 and not any(map(_EXPONENT.search, (given, expected)))
    return is_simple and _is_integer(given) == _is_integer(expected)


def _is_integer(text: str) -> bool:
    number = _number(text)
    is_near = math.isfinite(number) and abs(number - round(number)) <= 1e-7
    return is_near and (number == 0 or round(number) != 0)  # 9.11e-31 is not 0, unlike in these graders


def _number(text: str) -> float:
    try:
        return float(_THOUSANDS.sub("", text))
    except ValueError:
        return math.nan


def _amount(answer: str) -> str:
    """The answer without a dollar sign before it, or a percent sign after a number."""
    if _AMOUNT.match(answer):
        return answer[1:]
    percent = _PERCENT.fullmatch(answer)
    return answer if percent is None else percent[1]


def _numbers(text: str) -> list[float]:
    """The value of a number; two values of a multiple of pi, with pi and with 3.14."""
    multiple = _TIMES_PI.fullmatch(text.strip())
    if multiple is not None:
        factor = float(multiple[1]) if multiple[1].strip("-") else float(f"{multiple[1]}1")
        return [factor * math.pi, factor * 3.14]
    try:
        return [float(text.replace("{,}", "").replace(",", ""))]
    except ValueError:
        return []


def _is_close(number: float, truth: float) -> bool:
    return any(math.isclose(value, number, rel_tol=_TOLERANCE) for value in (truth / 100, truth, truth * 100))


def _no_spaces(text: str) -> str:
    return text.replace(" ", "")


def _quotient(text: str) -> float | None:
    """The value of a number or of a quotient of two numbers."""
    found = _QUOTIENT.fullmatch(text.replace(" ", ""))
    if found is None or (found[2] is not None and float(found[2]) == 0):
        return None
    return float(found[1]) / float(found[2] or 1)


def _no_brackets(text: str, other: str) -> str:
    """The text without braces and parentheses; without square brackets around it too, unless the other text has
    parentheses there."""
    text = text.strip()
    if not other.strip().startswith("("):
        text = text.strip("[]")
    return re.sub(r"[(){}]", "", text)


def _list_parts(text: str, other: str) -> list[str]:
    """The elements of a list, without the brackets around it if the other text has the same."""
    text, other = text.strip(), other.strip()
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and (text[0], text[-1]) == (other[:1], other[-1:]):
        text = text[1:-1]
    return [part.strip() for part in text.split(",")]
