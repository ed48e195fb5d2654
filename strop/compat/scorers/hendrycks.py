r"""Equality of LaTeX answers as text, after the normalization of the MATH data set (arXiv 2103.03874).

The rules are those of the data set's released grader. Two answers are equal if their normal forms are the same text,
so `\frac{1}{2}`, `\dfrac12`, `1/2` and `0.5` are equal, and `0.50` is another answer.
"""

from __future__ import annotations

import re

_REMOVED = ("\n", "\\!")
_DROPPED_COMMANDS = ("\\left", "\\right", "^{\\circ}", "^\\circ", "\\$")
_UNITS = "\\text{ "
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


class NormalFormError(ValueError):
    """The normalization is not defined for an answer; such an answer is compared as it stands."""


def is_equal(answer: str, truth: str) -> bool:
    """Whether two answers have the same normal form, or, where one has none, are the same text."""
    try:
        return normal_form(answer) == normal_form(truth)
    except NormalFormError:
        return answer == truth


def normal_form(answer: str) -> str:
    """The answer without spacing, degree, dollar and percent signs and units, with fractions and roots in braces.

    Raises NormalFormError for an incomplete fraction or root, and for more than one unit.
    """
    text = _without(answer, _REMOVED).replace("\\\\", "\\").replace("tfrac", "frac").replace("dfrac", "frac")
    text = _without_units(_without(text, _DROPPED_COMMANDS)).replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = f"0{text}"
    left, equals, right = text.partition("=")
    if equals and "=" not in right and len(left) <= 2:  # a variable's name
        text = right
    text = _with_braced_roots(text).replace(" ", "")
    return "\\frac{1}{2}" if text == "0.5" else with_fractions(text)


def _without(text: str, parts: tuple[str, ...]) -> str:
    for part in parts:
        text = text.replace(part, "")
    return text


def _without_units(text: str) -> str:
    number, *units = text.split(_UNITS)
    if len(units) > 1:
        raise NormalFormError("more than one unit")
    return number


def _with_braced_roots(text: str) -> str:
    first, *rest = text.split("\\sqrt")
    if not all(rest):
        raise NormalFormError("a root of nothing")
    braced = (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}" for part in rest)
    return "\\sqrt".join((first, *braced))


def with_fractions(text: str, *, roots: bool = False) -> str:
    r"""The text with braces in its fractions, and `a/b` of two integers as a fraction; with `roots` also that of texts
    with a root, as in `\sqrt{21}/5`.

    Raises NormalFormError for an incomplete fraction.
    """
    text = _with_braced_fractions(text)
    parts = text.split("/")
    is_ratio = len(parts) == 2 and all(
        _INTEGER.fullmatch(part) or (roots and "sqrt" in part) for part in parts
    )
    return f"\\frac{{{parts[0]}}}{{{parts[1]}}}" if is_ratio else text


def _with_braced_fractions(text: str) -> str:
    first, *rest = text.split("\\frac")
    parts = [first]
    for part in rest:
        if not part:
            raise NormalFormError("a fraction of nothing")
        if part[0] == "{":
            parts.append(part)
        elif len(part) < 2:
            return text
        else:
            below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            parts.append(f"{{{part[0]}}}{below}")
    return "\\frac".join(parts)
