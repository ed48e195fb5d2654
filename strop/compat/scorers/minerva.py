r"""Equality of answers as text, after the normalization of Minerva (arXiv 2206.14858, appendix D.1)."""

from __future__ import annotations

import re

from strop.compat.scorers.boxed import without_command

_REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
_UNITS = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km"),
    *("units", "\\ldots", "sue", "points", "feet", "minutes", "digits", "cents"),
    *("degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *("childrentickets", "multiples"),
)
_LATEX = (
    *("\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}"),
    *("\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_SHORT_FRACTION = re.compile(r"frac([^{])(.)")
_SHORT_ROOT = re.compile(r"sqrt([^{])")


def normal_form(answer: str) -> str:
    """The right side of the answer's last equation, without units, spaces and text commands."""
    text = answer.rpartition("=")[2]
    for before, after in _REPLACED:
        text = text.replace(before, after)
    for part in (*_UNITS, *_LATEX):
        text = text.replace(part, "")
    text = "\n".join(map(_first_formula, text.split("\n")))
    for command in ("text", "textbf", "overline"):
        text = without_command(text, command)
    text = "\n".join(map(_boxed, text.split("\n")))
    text = _SHORT_ROOT.sub(r"sqrt{\1}", _SHORT_FRACTION.sub(r"frac{\1}{\2}", text)).replace("$", "")
    digits = text.replace(",", "")
    return digits.strip() if digits.isdigit() else text.strip()


def _first_formula(line: str) -> str:
    """The first formula of a line, with its dollar signs; the line if it has none."""
    parts = line.split("$", 2)
    return f"${parts[1]}$" if len(parts) == 3 else line


def _boxed(line: str) -> str:
    r"""A line without its first `\boxed{` and its last brace."""
    start, end = line.find("\\boxed{"), line.rfind("}")
    inside = start + len("\\boxed{")
    return line[:start] + line[inside:end] + line[end + 1 :] if start >= 0 and inside <= end else line
