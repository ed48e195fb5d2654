r"""Limits of `math`: the length, the depth and the numbers of a LaTeX answer, checked before it is evaluated.

sympy evaluates some operators while it parses, and a power tower such as `9^{9^{9^9}}` fits into a short text. The
scanner below reads LaTeX roughly and bounds the size of each number in it from above. Symbols count as 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from sympy import Add, Basic, Function, Integer, Integral, MatrixBase, MatrixExpr, Mul, Pow, Product, Sum
from sympy.core.relational import Relational

from strop.rewards.graders import SizeLimitError

MAX_CHARS = 1000
"""Maximum length of an answer; longer ones are allowed where the task's own answer is long."""
MAX_DEPTH = 24
"""Maximum depth of brackets."""
MAX_BITS = 40_000.0
"""Maximum size of a number, about 12,000 decimal digits."""
MAX_NODES = 600
"""Maximum number of nodes in a parsed expression."""
MAX_TERMS = 4000
"""Maximum number of terms of a sum, a product, or an expanded polynomial."""
MAX_EXPONENT_OF_FUNCTIONS = 50
"""Maximum exponent of a symbol in an expression with functions, and in a relation, which sympy solves."""
MAX_MATRIX = 64
"""Maximum number of entries of a matrix."""

_TOKEN = re.compile(
    r"(?P<number>\d+(?:(?:,|\{,\})\d{3})*(?:\.\d*)?|\.\d+)|(?P<power>\^|\*\*)|(?P<factorial>!)|(?P<subscript>_)"
    r"|(?P<skip>\s+|\\(?:left|right|limits|[bB]igg?[lr]?)(?![a-zA-Z])|\\[,;:! ])"
    r"|(?P<open>[({\[]|\\(?:\{|(?:lfloor|lceil|langle|lvert)(?![a-zA-Z])))"
    r"|(?P<close>[)}\]]|\\(?:\}|(?:rfloor|rceil|rangle|rvert)(?![a-zA-Z])))"
    r"|(?P<command>\\[a-zA-Z]+)|(?P<constant>e)|(?P<symbol>\\.|.)",
    re.DOTALL,
)
_BINOMIALS = {r"\binom", r"\dbinom", r"\tbinom"}


def check_latex(latex: str, max_chars: int = MAX_CHARS) -> None:
    """Raises SizeLimitError for LaTeX that is too long, too deep, or has a number that is too large."""
    if len(latex) > max_chars:
        raise SizeLimitError(f"the answer has {len(latex)} characters")
    if latex.count("&") + latex.count(r"\\") > MAX_MATRIX:
        raise SizeLimitError("the answer has a matrix that is too large")
    scanner = _Scanner(latex)
    while scanner.token is not None:
        scanner.sequence_bits(0)


class _Scanner:
    """Upper bounds of log2 of the numbers in LaTeX, one token ahead."""

    def __init__(self, latex: str) -> None:
        self._tokens = (
            (match.lastgroup or "", match[0]) for match in _TOKEN.finditer(latex) if match.lastgroup != "skip"
        )
        self.token = next(self._tokens, None)

    def sequence_bits(self, depth: int) -> float:
        """Bits up to the closing bracket: the sum over all factors and terms."""
        if depth > MAX_DEPTH:
            raise SizeLimitError(f"the answer has more than {MAX_DEPTH} nested brackets")
        total = 0.0
        while self.token is not None:
            kind, text = self._next()
            if kind == "close":
                break
            if text == r"\choose":
                total = _value(total)
            elif kind == "subscript":
                self._argument_bits(depth)
            else:
                total = _checked(total + self._power_bits(kind, text, depth))
        return total

    def _next(self) -> tuple[str, str]:
        assert self.token is not None
        token, self.token = self.token, next(self._tokens, None)
        return token

    def _is_next(self, *kinds: str) -> bool:
        return self.token is not None and self.token[0] in kinds

    def _power_bits(self, kind: str, text: str, depth: int) -> float:
        """Bits of an item with its exponents, as if they were a tower, and factorials."""
        tower = [0.0 if kind == "power" else self._item_bits(kind, text, depth)]
        if kind == "power":
            tower.append(self._argument_bits(depth))
        while self._is_next("power", "factorial", "subscript"):
            operator, _ = self._next()
            if operator == "factorial":
                tower[-1] = _checked(_factorial_bits(tower[-1]))
            elif operator == "power":
                tower.append(self._argument_bits(depth))
            else:
                self._argument_bits(depth)
        bits = tower.pop()
        while tower:
            bits = _checked(tower.pop() * _value(bits))
        return bits

    def _argument_bits(self, depth: int) -> float:
        while self._is_next("symbol") and self.token is not None and self.token[1] in "+-":
            self._next()
        return 0.0 if self.token is None or self._is_next("close") else self._item_bits(*self._next(), depth)

    def _item_bits(self, kind: str, text: str, depth: int) -> float:
        if kind == "open":
            return self.sequence_bits(depth + 1)
        if kind == "number":
            digits = re.sub(r"\D", "", text)
            return len(digits) * math.log2(10) if len(digits) > 15 else math.log2(int(digits or 0) + 1)
        if kind == "command":
            return _checked(self._command_bits(text, depth))
        return _CONSTANT_BITS if kind == "constant" else 0.0

    def _command_bits(self, command: str, depth: int) -> float:
        """Bits of a command with all bracketed arguments, or the number, that follow it."""
        arguments: list[float] = []
        while self._is_next("open") or (not arguments and self._is_next("number", "constant")):
            arguments.append(self._item_bits(*self._next(), depth))
        if command in _BINOMIALS and len(arguments) >= 2:
            upper, lower = arguments[:2]
            return min(_value(upper), _value(lower) * upper)
        if command == r"\Gamma":
            return _factorial_bits(sum(arguments))
        if command == r"\exp":
            return 2 * _value(sum(arguments))
        return sum(arguments) + (_CONSTANT_BITS if command == r"\pi" else 0.0)


_CONSTANT_BITS = 2.0
"""Bits of e and of pi."""


def _factorial_bits(bits: float) -> float:
    return _value(bits) * bits


def _value(bits: float) -> float:
    """Upper bound of a number of `bits` bits."""
    return 2.0 ** min(bits, 1000.0)


def _checked(bits: float) -> float:
    if bits > MAX_BITS:
        raise SizeLimitError(f"the answer has a number of more than {MAX_BITS:g} bits")
    return bits


def check_expression(expression: object) -> None:
    """Raises SizeLimitError for a parsed expression that is too large to evaluate or simplify."""
    if not isinstance(expression, Basic | MatrixBase):
        return
    max_exponent = MAX_TERMS
    if expression.has(Function) or isinstance(expression, Relational):
        max_exponent = MAX_EXPONENT_OF_FUNCTIONS
    integrals = 0
    for count, node in enumerate(_nodes(expression)):
        if count > MAX_NODES:
            raise SizeLimitError(f"the answer has more than {MAX_NODES} nodes")
        if isinstance(node, Integral):
            integrals += len(node.limits)
            if integrals > 1 or len(node.function.free_symbols) > 1:
                raise SizeLimitError("the answer has an integral over several variables, or with parameters")
        if isinstance(node, Sum | Product):
            _check_range(node)
        elif isinstance(node, Pow) and isinstance(node.base, MatrixBase | MatrixExpr):
            _check_matrix_power(node)
        elif isinstance(node, Pow) and node.free_symbols and _is_above(node.exp, max_exponent):
            raise SizeLimitError(f"the answer has an exponent above {max_exponent}")
        elif isinstance(node, Add | Mul | Pow) and _terms(node) > MAX_TERMS:
            raise SizeLimitError(f"the answer has more than {MAX_TERMS} terms")


def _is_above(exponent: Basic, limit: int) -> bool:
    return isinstance(exponent, Integer) and abs(int(exponent)) > limit


def _nodes(expression: Basic | MatrixBase) -> Iterator[Basic | MatrixBase]:
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.flat() if isinstance(node, MatrixBase) else node.args)


def _check_range(node: Sum | Product) -> None:
    terms = 1.0
    for _, first, last in node.limits:
        if isinstance(first, Integer) and isinstance(last, Integer):
            terms *= max(int(last) - int(first) + 1, 1)
        elif last.is_number and (last.is_finite or isinstance(node, Product)):
            terms *= MAX_TERMS + 1  # a bound that is not a literal
    if terms > MAX_TERMS:
        raise SizeLimitError(f"the answer has a sum or a product of more than {MAX_TERMS} terms")


def _check_matrix_power(node: Pow) -> None:
    if not (isinstance(node.exp, Integer) and abs(int(node.exp)) <= 64):
        raise SizeLimitError("the answer has a large power of a matrix")


def _terms(node: Basic) -> float:
    """Upper bound of the number of terms after expansion."""
    if isinstance(node, Add):
        return sum(_terms(argument) for argument in node.args)
    if isinstance(node, Mul):
        return math.prod(_terms(argument) for argument in node.args)
    if isinstance(node, Pow) and isinstance(node.exp, Integer) and isinstance(node.base, Add | Mul | Pow):
        exponent, terms = abs(int(node.exp)), _terms(node.base)
        if terms <= 1:
            return 1.0
        if exponent > MAX_TERMS or terms > MAX_TERMS:
            return math.inf
        return float(math.comb(exponent + int(terms) - 1, exponent))
    return 1.0
