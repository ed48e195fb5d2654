"""Tokens of LaTeX and of plain mathematical text, with LaTeX's commands and the names of functions."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strop.rewards.mathematics.units import LETTERS, MULTIPLES, SHORT


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _names(
    "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth arsinh arcosh artanh asin acos atan "
    "log ln lg exp sqrt cbrt abs max min gcd lcm floor ceil arg Re Im sgn"
)
"""Names that stand for functions with and without a backslash."""
WITH_INVERSE = _names("sin cos tan sinh cosh tanh")
"""Functions whose power -1 is the inverse function."""
ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
SYMBOLS = _names(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar prime angle "
    "triangle square star dagger circ perp parallel"
)
"""Commands that stand for variables."""
RELATIONS = {
    "=": "=",
    "<": "<",
    ">": ">",
    r"\lt": "<",
    r"\gt": ">",
    r"\equiv": "equiv",
    r"\in": "in",
    r"\notin": "notin",
    **dict.fromkeys((r"\le", r"\leq", r"\leqslant"), "<="),
    **dict.fromkeys((r"\ge", r"\geq", r"\geqslant"), ">="),
    **dict.fromkeys((r"\ne", r"\neq"), "!="),
    **dict.fromkeys((r"\approx", r"\simeq", r"\sim"), "~"),
    **dict.fromkeys((r"\subset", r"\subseteq"), "subset"),
    **dict.fromkeys((r"\to", r"\rightarrow", r"\mapsto"), "to"),
}
"""Operator of a relation by its sign or command."""
SET_OPERATORS = {
    r"\cup": "union",
    r"\cap": "intersection",
    r"\setminus": "difference",
    r"\backslash": "difference",
}
OPENINGS = {"(": "(", "[": "[", r"\{": "{", r"\langle": "<", r"\lbrace": "{", r"\lbrack": "[", "]": "]"}
CLOSINGS = {")": ")", "]": "]", r"\}": "}", r"\rangle": ">", r"\rbrace": "}", r"\rbrack": "]", "[": "["}
PAIRS = _names("() [] (] [) {} <> ][ ]( )[ ]] [[")
"""Pairs of brackets; the reversed ones are open ends of intervals."""
NAMED_SETS = {"R": "reals", "Z": "integers", "N": "naturals", "Q": "rationals", "C": "complexes"}
VECTORS = _names(r"\vec \overrightarrow \hat \widehat")
BOLD = _names(r"\mathbf \bm \boldsymbol \pmb")
TRANSPARENT = _names(r"\boxed \fbox \underline \mathrm \mathit \text \textbf \mathsf \mbox")
"""Commands without a meaning of their own."""
ACCENTS = _names(r"\overline \bar \tilde \dot \ddot \mathcal \mathfrak \mathscr")
FRACTIONS = _names(r"\frac \dfrac \tfrac \cfrac")
BINOMIALS = _names(r"\binom \dbinom \tbinom")
DOTS = _names(r"\ldots \dots \cdots \dotsc \dotsb \vdots")
UNSUPPORTED = _names(r"\int \iint \sum \prod \lim \limsup \liminf \det \partial \nabla")
"""Operators that math-verify evaluates."""
CURRENCIES = {r"\$": "$", "€": "€", "£": "£", "¥": "¥", "₹": "₹", r"\pounds": "£", r"\euro": "€"}
NAMED_BASES = {
    **{
        name: number
        for number, name in enumerate(["two", "three", "four", "five", "six", "seven", "eight", "nine"], 2)
    },
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "sixteen": 16,
}
PERCENT_WORDS = ("percent", "per cent", "pct", "percentage")


_NAMES = {
    "infinity": r"\infty",
    "inf": r"\infty",
    "infty": r"\infty",
    "oo": r"\infty",
    "pi": r"\pi",
    "theta": r"\theta",
}
_JOINTS = {"and": ",", "or": "or", "": ",", ",": ",", ";": ","}
_SMALL_WORDS = ("no", "yes", "not", "of", "per", "sq", "all", "the", "is", "are", "odd", "men", "day", "cu")
_TOKEN = re.compile(
    r"(?P<space>\s+|\\[,;:> ])"
    r"|\\(?P<font>text|textrm|textbf|textit|textsf|textnormal|textup|mathrm|mathsf|mathit|mbox|hbox|operatorname\*?)"
    r"\s*\{(?P<content>[^{}]*)\}"
    r"|\\begin\s*\{(?P<begin>[a-zA-Z]+\*?)\}(?:\s*\{[clr|\s]*\})?|\\end\s*\{(?P<end>[a-zA-Z]+\*?)\}"
    r"|(?P<numeral>\d+_(?:\{\s*(?:\\text\s*\{[^{}]*\}|[a-z]+|\d+)\s*\}|\d+)|\d[0-9A-F]*_(?:\{1[1-6]\}|1[1-6]))"
    r"|(?P<number>(?:\d+(?:\.\d+)?|\.\d+)(?:[eE](?:[+-]\d+|\d+)(?![\d.]))?)"
    r"|(?P<command>\\[a-zA-Z]+|\\.)|(?P<word>[A-Za-z]+)|(?P<power>\*\*)|(?P<other>.)",
    re.DOTALL,
)
_EULER = re.compile(r"\d[eE][+-]")
_UNIT_TEXT = re.compile(r"\s*(?:[A-Za-z]+[A-Za-z.\s/-]*(?:\^\s*-?\d)?|\([A-Za-z\s]+\))\s*")
_VOWEL = re.compile(r"[aeiouy]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Token:
    """`kind` is number, numeral, name, function, words, joint, command, begin, end or other."""

    kind: str
    text: str
    spaced: bool = False
    """Whether white space precedes it."""


def has_two_readings(text: str) -> bool:
    """Whether the text has a number like `2e-1`, which is 0.2 or a difference."""
    return _EULER.search(text) is not None


def tokenize(text: str, *, scientific: bool = True, units: bool = False) -> list[Token]:
    """Tokens of a cleaned text. Without `scientific`, the e of `2e-1` is Euler's number; with `units`, the m of `5 m`
    is a unit."""
    tokens: list[Token] = []
    spaced = False
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        assert found is not None
        position = found.end()
        kind = found.lastgroup or "other"
        if kind == "space":
            spaced = True
            continue
        if kind == "number" and not scientific:
            number = re.match(r"\d*\.?\d*", found[0])
            assert number is not None
            position = found.start() + number.end()
            tokens.append(Token("number", number[0], spaced))
        elif kind == "content":
            tokens += _font(found["font"], found["content"], spaced, tokens, scientific)
        elif kind == "word":
            tokens += _word(found[0], spaced, tokens, units)
        elif kind in ("begin", "end"):
            tokens.append(Token(kind, found[kind], spaced))
        elif kind == "power":
            tokens.append(Token("other", "^", spaced))
        elif kind == "other" and found[0] in ",;":
            tokens.append(Token("joint", ",", spaced))
        else:
            tokens.append(Token(kind, found[0], spaced))
        spaced = False
    return tokens


def _font(font: str, content: str, spaced: bool, before: list[Token], scientific: bool) -> list[Token]:
    """Tokens of text in an upright or another font: words, a function, a symbol, or mathematics."""
    inside = content.strip()
    lower = inside.lower().strip(" ,")
    if lower in _JOINTS:
        return [Token("joint", _JOINTS[lower], spaced)] if lower or "," in inside else []
    after_value = _is_value(before)
    if font.startswith("operatorname") or (inside in FUNCTIONS and not (inside == "min" and after_value)):
        return [Token("function", inside, spaced)]
    if lower == "to" and after_value:
        return [Token("other", ":", spaced)]
    if len(inside) == 1 and inside.isalpha():
        is_unit = (after_value or _is_quotient_of_units(before)) and inside in LETTERS
        return [Token("words" if is_unit else "name", inside, spaced)]
    if after_value and _UNIT_TEXT.fullmatch(content):
        return [Token("words", inside.strip("()"), True)]
    if re.search(r"[\d=<>+^\\()\[\]/%$]", inside):
        tokens = tokenize(inside, scientific=scientific)
        return (
            [Token(tokens[0].kind, tokens[0].text, spaced or tokens[0].spaced), *tokens[1:]] if tokens else []
        )
    return [Token("words", inside, spaced)]


def _is_value(before: list[Token]) -> bool:
    if not before:
        return False
    last = before[-1]
    return last.kind in ("number", "numeral") or last.text in (*")}]!", r"\pi", r"\}", r"\%")


def _is_quotient_of_units(before: list[Token]) -> bool:
    return len(before) > 1 and before[-1].text == "/" and before[-2].kind == "words"


def _word(word: str, spaced: bool, before: list[Token], units: bool) -> list[Token]:
    """Tokens of letters without a backslash: a function, words, a unit after a number, or a symbol for each letter."""
    lower = word.lower()
    if lower in ("and", "or"):
        return [Token("joint", _JOINTS[lower], spaced)]
    if word in FUNCTIONS and not (word == "min" and _is_value(before)):
        return [Token("function", word, spaced)]
    if lower == "to" and _is_value(before):
        return [Token("other", ":", spaced)]
    if lower in _NAMES:
        return [Token("command", _NAMES[lower], spaced)]
    follows_words = bool(before) and before[-1].kind == "words"
    is_text = len(word) >= 4 and _VOWEL.search(word) is not None
    is_unit = _is_value(before) and (word in SHORT or lower in ("th", "st", "nd", "rd") or lower in MULTIPLES)
    if units and word in LETTERS | SHORT and (_is_value(before) or _is_quotient_of_units(before)):
        return [Token("words", word, spaced)]
    if len(word) > 1 and (is_text or is_unit or follows_words or lower in _SMALL_WORDS):
        return [Token("words", word, spaced)]
    return [Token("name", letter, spaced and number == 0) for number, letter in enumerate(word)]
