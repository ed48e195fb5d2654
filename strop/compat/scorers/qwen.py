r"""Equality of boxed answers as text, after the normalization of Qwen2.5-Math's evaluation (arXiv 2409.12122).

That evaluation removes the units of a list; here, each word that follows a number is a unit.
"""

from __future__ import annotations

import re

from strop.compat.scorers import hendrycks
from strop.compat.scorers.boxed import without_command

_REMOVED = ("\n", "\\!", "\\$", "$", "%", "\\left", "\\right", "\\mathbf", "^{\\circ}", "^\\circ")
_REPLACED = (
    ("bmatrix", "pmatrix"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\neq", "\\ne"),
    ("\\leq", "\\le"),
    ("\\geq", "\\ge"),
    ("\\{", "{"),
    ("\\}", "}"),
)
_ARRAY = re.compile(r"\\(begin|end)\{array\}(?:\{.*?\})?")
_UNIT = re.compile(r"(?<=\d)(?:\s+[A-Za-z]+)+\.?\s*$|(?<=\d)\s*\b(?:cm|mm|km|kg|mph|ft|inches|degrees)\b")
_VARIABLE = re.compile(r"^[A-Za-z]\s*=\s*")
_WHOLE = re.compile(r"(?<!\d)(\d+)\.0+(?!\d)")
_ROOT = re.compile(r"\\sqrt\s*(\w+)")


def is_equal(answer: str, truth: str) -> bool:
    """Whether two answers have the same normal form, or, where one has none, are the same text."""
    try:
        return normal_form(answer) == normal_form(truth)
    except hendrycks.NormalFormError:
        return answer == truth


def normal_form(answer: str) -> str:
    """The answer without units, spaces, outer brackets, and the zeros after a whole number's decimal point."""
    text = answer.strip().replace("\n", "").rstrip(".")
    for part in _REMOVED:
        text = text.replace(part, "")
    text = _ARRAY.sub(r"\\\1{pmatrix}", text)
    for before, after in _REPLACED:
        text = text.replace(before, after)
    text = _UNIT.sub("", without_command(without_command(text, "mbox", keep=False), "text"))
    text = _WHOLE.sub(r"\1", _VARIABLE.sub("", text))
    text = re.sub(r"(?<!\\)\binf(?:inity)?\b", r"\\infty", text).replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = f"0{text}"
    text = hendrycks.with_fractions(_ROOT.sub(r"\\sqrt{\1}", text.replace(" ", "")), roots=True)
    if (text[:1], text[-1:]) in (("{", "}"), ("(", ")")):
        text = text[1:-1]
    return text.strip()
