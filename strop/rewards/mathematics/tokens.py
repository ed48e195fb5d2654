"""Tokens of LaTeX and of plain mathematical text, after the text is cleaned of markup."""

from __future__ import annotations

import re
from dataclasses import dataclass

from strop.rewards.mathematics.units import LETTERS, MULTIPLES, SHORT

_CHARACTERS = {
    **dict.fromkeys("−–—﹣－", "-"),
    **dict.fromkeys("·⋅∙•", r"\cdot "),
    **dict.fromkeys("’‘ʹ", "'"),
    **dict.fromkeys("\u00a0\u2009\u202f\u2007\u2002\u2003\u3000", r"\,"),
    "°": r"^\circ ",
    "º": r"^\circ ",
    "℃": r"^\circ \text{C}",
    "℉": r"^\circ \text{F}",
    "∞": r"\infty ",
    "×": r"\times ",
    "÷": r"\div ",
    "∕": "/",
    "⁄": "/",
    "≤": r"\le ",
    "⩽": r"\le ",
    "≥": r"\ge ",
    "⩾": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∉": r"\notin ",
    "∖": r"\setminus ",
    "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}",
    "ℕ": r"\mathbb{N}",
    "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}",
    "…": r"\ldots ",
    "⋯": r"\ldots ",
    "′": "'",
    "％": "%",
    "，": ",",
    "：": ":",
    "（": "(",
    "）": ")",
    "＝": "=",
    "＋": "+",
    "。": ".",
    "∣": "|",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "ⅈ": "i",
    "ⅇ": "e",
    **{
        letter: rf"\{name} "
        for letter, name in zip(
            "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ",
            re.findall(
                r"\w+",
                "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi "
                "chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega",
            ),
            strict=True,
        )
    },
    **{
        character: rf"\frac{{{numbers[0]}}}{{{numbers[1]}}}"
        for character, numbers in zip(
            "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞",
            re.findall(r"\w+", "12 13 23 14 34 15 25 35 45 16 56 18 38 58 78"),
            strict=True,
        )
    },
}
_TRANSLATION = str.maketrans(
    {
        **_CHARACTERS,
        **dict.fromkeys(map(chr, [*range(32), *range(127, 160), 0x2028, 0x2029]), " "),
        **dict.fromkeys(("\u200b", "\ufeff", "\u2060"), None),
    }
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUPERSCRIPT = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUBSCRIPT = re.compile(r"[₀₁₂₃₄₅₆₇₈₉]+")
_ROOT = re.compile(r"([√∛])\s*+(\{[^{}]*\}|\([^()]*\)|\d++(?:\.\d++)?|[a-zA-Z])")
_SIZES = re.compile(
    r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|bigg?[lrm]?|Bigg?[lrm]?|mathstrut|strut|middle)(?![a-zA-Z])"
    r"|\\!|\\(?:mathop|mathrel|mathbin)(?![a-zA-Z])|\\(?:label|tag)\s*\{[^{}]*\}|\\(?:color|hspace|vspace)\*?\s*\{[^{}]*\}"
)
_LEFT_RIGHT = re.compile(r"\\(?:left|right)(?![a-zA-Z])\s*\.?")
_SPACES = re.compile(
    r"\\(?:quad|qquad|enspace|thinspace|medspace|thickspace|space|nobreakspace)(?![a-zA-Z])|~"
)
_BRACED_COMMA = re.compile(r"\{\s*,\s*\}|,\s*\\!\s*")
_JOINED = re.compile(
    r"(?<![\d.,])(\d{1,3})(\\[,;: ]|\s|'|\{,\})\s*(\d{3}(?:\2\s*\d{3})*)(?![\d/]|\s*/|\s*\\[dt]?frac)"
)
_COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d)(?!,\d)")
_GERMAN = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\.\d{3}){2,}(?:,\d+)?|(?:\.\d{3})+,\d+)(?![\d.,])")
_FORMULA_BORDERS = re.compile(r"(?<!\\)\$|\\[()]|\\\[|(?<!\\)\\\]")
_MARKUP = (("**", "**"), ("__", "__"), ("``", "``"), ("`", "`"), ("*", "*"))
_PREFIX = re.compile(
    r"\A(?:\\(?:text|textbf|mathrm)\s*+\{[^{}]*?(?:\b(?:is|are|equals)|[:=])\s*+:?\s*+\}"
    r"|(?:the\s+)?(?:final\s+)?answer\s*(?:is|:|=)\s*:?)",
    re.IGNORECASE,
)
_LEADING = re.compile(r"\A(?:\\(?:therefore|implies|Rightarrow|Longrightarrow|to)(?![a-zA-Z])|=(?!=)|:|\s)+")
_ORDINAL = re.compile(
    r"(?<=\d)\s*\^\s*(?:\{\s*\\(?:text|mathrm|textrm)\s*\{\s*(?:th|st|nd|rd)\s*\}\s*\}|\{\s*(?:th|st|nd|rd)\s*\}"
    r"|\\(?:text|mathrm|textrm)\s*\{\s*(?:th|st|nd|rd)\s*\})"
)
_QUOTIENT_OF_UNITS = re.compile(
    r"(?<=[\d}])(?:\s|\\[,;: ])*((?:k?m|cm|ft|mi|k?g|m?L)/(?:s|h|hr|min|k?m|cm|m?L|k?g)(?:\^\{?[23]\}?)?)(?=\s*\Z)"
)
_FRACTION_OF_UNITS = re.compile(
    r"\\[dt]?frac\s*\{\\(?:text|mathrm)\s*\{([A-Za-z ]+)\}\}"
    r"\{\\(?:text|mathrm)\s*\{([A-Za-z ]+)\}(?:\^\{?(\d)\}?)?\}"
)
_TEXT_WITH_DIGITS = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*\d[^{}]*)\}")
_TIMES_TEN = re.compile(r"(?<=\d)\s*[xX*]\s*10\s*\^")
_REPEATING = re.compile(
    r"(?<![\d.])(\d+)\.(\d*)(?:\\(?:overline|bar)\s*\{\s*(\d+)\s*\}|\\(?:overline|bar)\s*(\d)|\((\d+)\))"
)
_DOTTED = re.compile(
    r"(?<![\d.])(\d+)\.(\d*)\\dot\s*(?:\{\s*(\d)\s*\}|(\d))(?:(\d*)\\dot\s*(?:\{\s*(\d)\s*\}|(\d)))?"
)
_CONTINUED = re.compile(r"(?<![\d.])(\d+)\.(\d*?)(?:(\d)\3\3+|(\d{2,6}?)\4+)(?:\\[cl]?dots)(?![a-zA-Z])")
_ELLIPSIS = re.compile(r"\.\s?\.\s?\.")
ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
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
NAMED_SETS = {"R": "reals", "Z": "integers", "N": "naturals", "Q": "rationals", "C": "complexes"}
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


def clean(latex: str) -> str:
    """LaTeX without formula borders, markup, sizes, trailing punctuation and separators of thousands."""
    text = _SUPERSCRIPT.sub(lambda found: f"^{{{found[0].translate(_SUPERSCRIPTS)}}}", latex)
    text = _SUBSCRIPT.sub(lambda found: f"_{{{found[0].translate(_SUBSCRIPTS)}}}", text)
    text = _ROOT.sub(_root, text).translate(_TRANSLATION)
    if not text.isascii():
        text = "".join(str(int(each)) if each.isdecimal() and not each.isascii() else each for each in text)
    text = _FORMULA_BORDERS.sub(" ", text)
    text = _BRACED_COMMA.sub("{,}", text)
    text = _SPACES.sub(r"\\ ", _LEFT_RIGHT.sub("", _SIZES.sub("", text)))
    text = _ELLIPSIS.sub(r"\\ldots ", text)
    text = _LEADING.sub("", _PREFIX.sub("", _strip_markup(text)))
    text = _TEXT_WITH_DIGITS.sub(r"\1", text) if _TEXT_WITH_DIGITS.fullmatch(text) else text
    text = _QUOTIENT_OF_UNITS.sub(
        lambda found: rf" \text{{ {re.sub('[{}]', '', found[1])}}}", _strip_markup(text)
    )
    text = _FRACTION_OF_UNITS.sub(
        lambda found: rf"\text{{ {found[1]}/{found[2]}{'^' + found[3] if found[3] else ''}}}", text
    )
    text = _ORDINAL.sub("", _TIMES_TEN.sub(r"\\times 10^", text))
    text = _repeating(text)
    return _join_thousands(text).replace("{,}", ",")


def _root(found: re.Match[str]) -> str:
    inside = found[2].strip("{}")
    return rf"\sqrt{'[3]' if found[1] == '∛' else ''}{{{inside}}}"


def _strip_markup(text: str) -> str:
    """The text without emphasis, code marks and punctuation around it."""
    before = None
    while before != text:
        before = text
        text = re.sub(r"(?:\\[,;:! ]|\s)+\Z", "", text.strip())
        text = text.rstrip(".;:,") if not text.endswith("\\") else text[:-1]
        for opening, closing in _MARKUP:
            if text.startswith(opening) and text.endswith(closing) and len(text) > 2 * len(opening):
                text = text[len(opening) : -len(closing)]
                break
    return text


def _repeating(text: str) -> str:
    """Repeating decimals as fractions."""
    text = _DOTTED.sub(_dotted, _REPEATING.sub(_barred, text))
    return _CONTINUED.sub(lambda found: _fraction(found[1], found[2], found[3] or found[4]), text)


def _barred(found: re.Match[str]) -> str:
    return _fraction(found[1], found[2], found[3] or found[4] or found[5])


def _dotted(found: re.Match[str]) -> str:
    first, last = found[3] or found[4], found[6] or found[7] or ""
    return _fraction(found[1], found[2], first + (found[5] or "") + last if last else first) + (
        "" if last else found[5] or ""
    )


def _fraction(whole: str, fixed: str, period: str) -> str:
    numerator = int(whole + fixed + period) - int(whole + fixed)
    return rf"\frac{{{numerator}}}{{{'9' * len(period) + '0' * len(fixed)}}}"


def _join_thousands(text: str) -> str:
    r"""Numbers without separators of thousands: `1,234`, `1{,}234`, `12\,345`, `12 345`, `1'234`, `1.234.567`.

    Inside of brackets a comma separates items, unless other commas there are followed by a space.
    """
    text = _JOINED.sub(lambda found: found[1] + re.sub(r"\D", "", found[3]), text)
    text = _GERMAN.sub(lambda found: found[0].replace(".", "").replace(",", "."), text)
    if "," not in text:
        return text
    parts: list[str] = []
    position = 0
    for found in _COMMAS.finditer(text):
        if _is_thousands(text, found.start()):
            parts += [text[position : found.start()], found[0].replace(",", "")]
            position = found.end()
    return "".join([*parts, text[position:]])


def _is_thousands(text: str, position: int) -> bool:
    opening = max(text.rfind(bracket, 0, position) for bracket in "([")
    opening = max(opening, text.rfind("\\{", 0, position))
    closing = max(text.rfind(bracket, 0, position) for bracket in ")]")
    closing = max(closing, text.rfind("\\}", 0, position))
    if opening <= closing:
        return True
    end = min(
        (found for bracket in (")", "]", "\\}") if (found := text.find(bracket, position)) >= 0), default=-1
    )
    inside = text[opening : end if end >= 0 else len(text)]
    return re.search(r",(?:\s|\\[,;: ])", inside) is not None


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUNCTIONS = _names(
    "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth arsinh arcosh artanh asin acos atan "
    "log ln lg exp sqrt cbrt abs max min gcd lcm floor ceil arg Re Im sgn"
)
"""Names that stand for functions with and without a backslash."""
WITH_INVERSE = _names("sin cos tan sinh cosh tanh")
"""Functions whose power -1 is the inverse function."""
SYMBOLS = _names(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar prime angle "
    "triangle square star dagger circ perp parallel"
)
"""Commands that stand for variables."""
PAIRS = _names("() [] (] [) {} <> ][ ]( )[ ]] [[")
"""Pairs of brackets; the reversed ones are open ends of intervals."""
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
