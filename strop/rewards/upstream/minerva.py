r"""Equality of answers as text, after the normalization of Minerva (arXiv 2206.14858, appendix D.1)."""

from __future__ import annotations

import re

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
_FORMULA = re.compile(r".*?\$(.*?)\$.*")
_CONTENTS = (
    re.compile(r"\\text\{(.*?)\}"),
    re.compile(r"\\textbf\{(.*?)\}"),
    re.compile(r"\\overline\{(.*?)\}"),
    re.compile(r"\\boxed\{(.*)\}"),
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
    text = _FORMULA.sub(r"$\1$", text)
    for command in _CONTENTS:
        text = command.sub(r"\1", text)
    text = _SHORT_ROOT.sub(r"sqrt{\1}", _SHORT_FRACTION.sub(r"frac{\1}{\2}", text)).replace("$", "")
    digits = text.replace(",", "")
    return digits.strip() if digits.isdigit() else text.strip()
