"""Commands of LaTeX and names of functions that answers have."""

from __future__ import annotations


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
