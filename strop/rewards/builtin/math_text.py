r"""Text of LaTeX answers: the boxed part of a response, and other spellings of the same answer."""

from __future__ import annotations

import re

_BARE_BOX = re.compile(r"\\boxed[ \t]*+([^\s${}\\][^\s${}]*|\\[^\s$]+)")
_BRACE = re.compile(r"(?<!\\)[{}]")
_PREFIX = re.compile(r"\\(?:text|textbf|mathrm)\s*+\{[^{}]*?(?:\b(?:is|are|equals)|[:=])\s*+:?\s*+\}")
_ROOT = re.compile(r"√\s*+(\{[^{}]*\}|\([^()]*\)|\d++(?:\.\d++)?|[a-zA-Z])")
_APPROXIMATION = re.compile(r"\\approx(?![a-zA-Z])|≈|\\simeq(?![a-zA-Z])")
_PERCENT = re.compile(r"\\?%")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SUPERSCRIPT = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_CHARACTERS = {
    "−": "-",
    "°": r"^\circ ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "½": r"\frac{1}{2}",
}


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` or `\fbox{...}`, with balanced braces; None if there is none.

    Without any of these, the word after the last `\boxed` without braces.
    """
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        bare = text.rfind("\\boxed")
        found = None if bare < 0 else _BARE_BOX.match(text, bare)
        return None if found is None else found[1]
    opening = text.index("{", start)
    depth = 0
    for brace in _BRACE.finditer(text, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[opening + 1 : brace.start()]
    return None


def spellings(latex: str) -> list[str]:
    """The answer as it stands, then in plain LaTeX, if that differs: without words, a final period, or symbols."""
    plain = _PREFIX.sub("", latex, count=1).strip().rstrip(".,;").strip()
    for character, command in _CHARACTERS.items():
        plain = plain.replace(character, command)
    plain = _SUPERSCRIPT.sub(lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}", plain)
    plain = _ROOT.sub(lambda found: rf"\sqrt{{{found[1].strip('{}')}}}", plain)
    return [latex] if plain in ("", latex) else [latex, plain]


def approximation(latex: str) -> tuple[str, str] | None:
    r"""The two sides of `a \approx b`; None if the answer is not an approximation."""
    sides = _APPROXIMATION.split(latex)
    return (sides[0], sides[1]) if len(sides) == 2 else None


def rounding_error(decimal: str) -> float:
    """Maximum error of a number that is rounded to the digits that are written."""
    digits = re.sub(r"[^\d.]", "", decimal)
    whole, point, fraction = digits.partition(".")
    zeros = len(whole) - len(whole.rstrip("0"))
    return 0.5 * 10.0 ** (-len(fraction) if point else zeros)


def without_percent(latex: str) -> str | None:
    """The answer without its percent sign; None if it has none."""
    plain = _PERCENT.sub("", latex)
    return None if plain == latex else plain


def is_same_text(one: str, other: str) -> bool:
    """Whether two answers differ in spaces only."""
    return "".join(one.split()) == "".join(other.split())
