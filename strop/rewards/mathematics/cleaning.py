r"""Cleaning of an answer before it is parsed: markup, spaces, separators of thousands, repeating decimals."""

from __future__ import annotations

import re

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
