"""Parser of answers: LaTeX and plain text to nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from strop.rewards.graders import SizeLimitError
from strop.rewards.mathematics import tokens
from strop.rewards.mathematics.nodes import (
    Collection,
    Constant,
    Matrix,
    Node,
    Number,
    Numeral,
    Operation,
    ParseError,
    Quantity,
    Ratio,
    Relation,
    Symbol,
    Time,
    Unit,
    UnsupportedError,
    Words,
    is_expression,
)
from strop.rewards.mathematics.tokens import Token, clean, has_two_readings, tokenize
from strop.rewards.mathematics.units import UNITS, parse_unit

MAX_DEPTH = 40
"""Maximum depth of an expression."""
MAX_EXPONENT = 12_000
"""Maximum decimal exponent of a number in scientific notation."""

_NUMERAL = re.compile(
    r"([0-9A-Z]+)_(?:\{\s*+(?:\\text\s*+\{)?\s*+(?:base)?\s*+([a-z]+|\d+)\s*+\}?\s*+\}|(\d+))"
)
_TIME = re.compile(
    r"(\d{1,2}):(\d\d)(?::(\d\d))?(?:\s|\\[,;: ])*+(?:\\(?:text|mathrm|mbox)\s*+\{)?\s*+(?:([ap])\.?\s*+m\.?)?\s*+\}?",
    re.IGNORECASE,
)


def parse_answer(latex: str, *, units: bool = False) -> list[Node]:
    """Readings of an answer: one, or two where an `e` may be an exponent's mark or Euler's number.

    With `units`, a letter after a number is a unit if there is one of this name (`5 m`).

    Raises ParseError for a text that is not mathematics, SizeLimitError for one that is too deep.
    """
    text = clean(latex)
    time = _TIME.fullmatch(text)
    if time is not None:
        return [Time(tuple(int(each) for each in time.group(1, 2, 3) if each), (time[4] or "").lower())]
    readings = [_Parser(tokenize(text, units=units)).answer()]
    if has_two_readings(text):
        readings.append(_Parser(tokenize(text, scientific=False)).answer())
    return readings


class _Parser:
    """Recursive descent over tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0
        self._bars = 0
        self._is_reversed = False

    def answer(self) -> Node:
        if not self._tokens:
            raise ParseError("no text")
        node = self._list()
        if self._position < len(self._tokens):
            raise ParseError(f"unexpected {self._text()!r}")
        return node

    # Tokens

    def _text(self, ahead: int = 0) -> str:
        position = self._position + ahead
        return self._tokens[position].text if position < len(self._tokens) else ""

    def _kind(self, ahead: int = 0) -> str:
        position = self._position + ahead
        return self._tokens[position].kind if position < len(self._tokens) else ""

    def _next(self) -> Token:
        if self._position >= len(self._tokens):
            raise ParseError("unexpected end")
        self._position += 1
        return self._tokens[self._position - 1]

    def _expect(self, text: str) -> None:
        if self._next().text != text:
            raise ParseError(f"{text!r} expected")

    def _is(self, *texts: str) -> bool:
        return self._text() in texts and self._kind() not in ("words", "name", "")

    # Lists and relations

    def _list(self) -> Node:
        """One item, or several separated by commas, `and` or `or`."""
        items = [self._relation()]
        joint = ","
        while self._kind() == "joint":
            while self._kind() == "joint":
                if self._next().text == "or":
                    joint = "or"
            if self._position >= len(self._tokens) or self._is(*tokens.CLOSINGS):
                break
            items.append(self._relation())
        return items[0] if len(items) == 1 else Collection("", tuple(items), joint)

    def _relation(self) -> Node:
        if self._is("=", r"\approx", r"\simeq"):
            self._next()
        sides = [self._ratio()]
        operators: list[str] = []
        while self._kind() in ("other", "command") and self._text() in tokens.RELATIONS:
            operator = tokens.RELATIONS[self._next().text]
            if operator in "<>" and self._is("="):
                self._next()
                operator += "="
            operators.append(operator)
            sides.append(self._ratio())
        if self._is(r"\pmod"):
            self._next()
            sides[-1] = Operation("modulo", (sides[-1], self._argument()))
        elif self._is("(") and self._text(1) in (r"\bmod", r"\mod", "mod"):
            self._position += 2
            sides[-1] = Operation("modulo", (sides[-1], self._ratio()))
            self._expect(")")
        return Relation(tuple(sides), tuple(operators)) if operators else sides[0]

    def _ratio(self) -> Node:
        terms = [self._set_expression()]
        while self._is(":"):
            self._next()
            terms.append(self._set_expression())
        return Ratio(tuple(terms)) if len(terms) > 1 else terms[0]

    def _set_expression(self) -> Node:
        node = self._sum()
        while True:
            is_union = (
                self._kind() == "name" and self._text() == "U" and isinstance(node, Collection | Operation)
            )
            if is_union and self._text(1) in ("(", "[", r"\{"):
                operator = "union"
            elif self._kind() == "command" and self._text() in tokens.SET_OPERATORS:
                operator = tokens.SET_OPERATORS[self._text()]
            else:
                return node
            self._next()
            node = Operation(operator, (node, self._sum()))

    # Arithmetic

    def _sum(self) -> Node:
        terms = [self._signed_term()]
        while self._is("+", "-", r"\pm", r"\mp"):
            terms.append(self._signed_term())
        return terms[0] if len(terms) == 1 else Operation("+", tuple(terms))

    def _signed_term(self) -> Node:
        sign = self._signs()
        term = self._term()
        return Operation(sign, (term,)) if sign else term

    def _signs(self) -> str:
        """Operation of all signs before a term."""
        negative, both = False, ""
        while self._is("+", "-", r"\pm", r"\mp"):
            text = self._next().text
            negative ^= text == "-"
            if text in (r"\pm", r"\mp"):
                if both:
                    raise ParseError("two plus-minus signs")
                both = "plus_minus" if text == r"\pm" else "minus_plus"
        if both:
            return both if not negative else {"plus_minus": "minus_plus", "minus_plus": "plus_minus"}[both]
        return "-" if negative else ""

    def _term(self) -> Node:
        factors = [self._power()]
        while True:
            if self._kind() == "words":
                factors = [self._quantity(_product(factors))]
                continue
            if self._is("*", r"\cdot", r"\times", r"\ast"):
                self._next()
                factors.append(self._signed_factor())
            elif self._text() in tokens.CURRENCIES and self._kind(1) != "number":
                factors = [Quantity(_product(factors), UNITS[tokens.CURRENCIES[self._next().text]])]
            elif self._is("/", r"\div"):
                self._next()
                if self._kind() == "words":
                    raise ParseError("a unit without a number")
                factors.append(Operation("reciprocal", (self._signed_factor(),)))
            elif self._is(r"\bmod", r"\mod"):
                self._next()
                factors = [Operation("mod", (_product(factors), self._signed_factor()))]
            elif self._starts_factor():
                if (
                    self._kind() in ("number", "numeral")
                    and self._tokens[self._position - 1].kind == "number"
                ):
                    raise ParseError("two numbers without an operator")
                factors.append(self._power())
            else:
                return _product(factors)

    def _signed_factor(self) -> Node:
        sign = self._signs()
        factor = self._power()
        return Operation(sign, (factor,)) if sign else factor

    def _starts_factor(self) -> bool:
        kind, text = self._kind(), self._text()
        if kind in ("number", "numeral", "name", "function", "begin"):
            return not (kind == "name" and text == "U" and self._text(1) in ("(", "[", r"\{"))
        if text == "|":
            return self._bars == 0
        if kind == "command":
            return not (
                text in tokens.RELATIONS
                or text in tokens.SET_OPERATORS
                or text in tokens.CLOSINGS
                or text
                in (
                    r"\pm",
                    r"\mp",
                    r"\pmod",
                    r"\rvert",
                    r"\rfloor",
                    r"\rceil",
                    r"\%",
                    "\\\\",
                    r"\|",
                    r"\mid",
                    r"\choose",
                )
            )
        return text in ("(", "{") or (text == "[" and not self._is_reversed) or text in tokens.CURRENCIES

    def _quantity(self, value: Node) -> Node:
        """A value with the unit that follows it."""
        words = []
        while True:
            if self._kind() == "words":
                words.append(self._next().text)
            elif self._is("^") and (exponent := self._unit_exponent()):
                words.append(f"^{exponent}")
            elif self._is("/", r"\cdot") and self._kind(1) == "words":
                words.append("/" if self._next().text == "/" else " ")
            else:
                break
        text = re.sub(r"\s*\^", "^", " ".join(words))
        if text.lower().strip() in tokens.PERCENT_WORDS:
            return Operation("percent", (value,))
        if isinstance(value, Words):
            return Words(f"{value.text} {text}")
        if not is_expression(value):
            raise ParseError(f"words after {type(value).__name__}")
        unit, multiple = parse_unit(text)
        if multiple != 1:
            value = Operation("*", (value, Number(Fraction(multiple))))
        if isinstance(value, Quantity):
            if _is_money(value.unit):
                return Quantity(value.value, value.unit)
            raise ParseError("a quantity with two units")
        if unit.powers == frozenset({("degree", 1)}):
            return Operation("degree", (value,))
        quantity: Node = Quantity(value, unit) if unit.powers else value
        if self._starts_factor() and self._kind() == "number" and isinstance(quantity, Quantity):
            more = self._term()  # 2 hours 30 minutes
            if isinstance(more, Quantity) and more.unit.powers == unit.powers:
                ratio = Operation("*", (more.value, Number(more.unit.factor / unit.factor)))
                return Quantity(Operation("+", (value, ratio)), unit)
            raise ParseError("two quantities")
        return quantity

    def _unit_exponent(self) -> str:
        """Integer exponent of a unit, which is consumed; an empty text if there is none."""
        found = re.match(
            r"\^(?:\{(-?)(\d)\}|(-?)(\d)(?!\d))",
            "".join(token.text for token in self._tokens[self._position : self._position + 5]),
        )
        if found is None:
            return ""
        self._position += 2 + (2 if found[2] else 0) + (1 if found[1] or found[3] else 0)
        return (found[1] or found[3] or "") + (found[2] or found[4])

    def _power(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SizeLimitError(f"the answer is deeper than {MAX_DEPTH} levels")
        start = self._position
        node = self._primary()
        has_exponent = False
        while True:
            if self._is("^"):
                if self._is_degree():
                    node = self._degree(node)
                    continue
                self._next()
                if self._is(r"\prime", "'") or (self._text(), self._text(1), self._text(2)) == (
                    "{",
                    r"\prime",
                    "}",
                ):
                    self._position += 1 if not self._is("{") else 3
                    node = _renamed(node, "'")
                    continue
                if has_exponent:
                    raise ParseError("two exponents")
                has_exponent = True
                if isinstance(node, Matrix) and self._text() in ("T", r"\top", r"\intercal"):
                    self._next()
                    node = Matrix(tuple(zip(*node.rows, strict=True)))
                    continue
                node = Operation("^", (node, self._argument()))
            elif self._is(r"\degree", r"\circ") and not isinstance(node, Symbol):
                self._next()
                node = self._degree(node, consumed=True)
            elif self._is("_"):
                self._next()
                node = self._with_subscript(node)
            elif self._is("!"):
                self._next()
                if self._is("!"):
                    raise UnsupportedError("a double factorial")
                node = Operation("factorial", (node,))
            elif self._is("%", r"\%"):
                self._next()
                if isinstance(node, Operation) and node.name == "percent":
                    raise ParseError("two percent signs")
                node = Operation("percent", (node,))
            elif self._is("'"):
                self._next()
                node = _renamed(node, "'")
            else:
                break
        if self._position == start:
            raise ParseError("no operand")
        self._depth -= 1
        return node

    def _is_degree(self) -> bool:
        texts = tuple(self._text(ahead) for ahead in range(1, 4))
        return texts[0] in (r"\circ", r"\degree", "o") or texts in (("{", r"\circ", "}"), ("{", "o", "}"))

    def _degree(self, node: Node, consumed: bool = False) -> Node:
        if not consumed:
            self._position += 2 if self._text(1) != "{" else 4
        if isinstance(node, Operation) and node.name == "degree":
            raise ParseError("two degree signs")
        if self._kind() in ("name", "words") and self._text() in ("C", "F", "K"):
            return Quantity(node, Unit(Fraction(1), frozenset({(f"degree {self._next().text}", 1)})))
        return Operation("degree", (node,))

    def _with_subscript(self, node: Node) -> Node:
        raw = self._raw_argument()
        if isinstance(node, Symbol):
            return _renamed(node, f"_{raw}")
        if isinstance(node, Number) and node.value.denominator == 1 and raw.isdigit():
            return _numeral(str(node.value), raw)
        raise ParseError("a subscript")

    def _raw_argument(self) -> str:
        """Text of a group or of one token."""
        if not self._is("{"):
            return self._next().text
        depth = 0
        parts: list[str] = []
        while True:
            token = self._next()
            depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "other" else 0
            if depth == 0:
                return "".join(parts[1:])
            parts.append(token.text)

    def _argument(self) -> Node:
        """Exponent or argument, in braces or one operand."""
        sign = self._signs()
        node = self._nested(self._primary)
        return Operation(sign, (node,)) if sign else node

    def _nested(self, parse: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SizeLimitError(f"the answer is deeper than {MAX_DEPTH} levels")
        node = parse()
        self._depth -= 1
        return node

    def _digit_argument(self) -> Node:
        """Argument of a fraction or a root: a group, or one digit of a number."""
        token = self._tokens[self._position] if self._position < len(self._tokens) else None
        if token is not None and token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            self._tokens[self._position] = Token("number", token.text[1:], False)
            return _number(token.text[0])
        return self._nested(self._primary)

    # Operands

    def _primary(self) -> Node:
        token = self._next()
        kind, text = token.kind, token.text
        if kind == "number":
            return self._mixed(_number(text))
        if kind == "numeral":
            found = _NUMERAL.fullmatch(text)
            if found is None:
                raise ParseError("a subscript of a number")
            return _numeral(found[1], found[2] or found[3])
        if kind == "name":
            return Constant(text) if text in ("e", "i") else Symbol(text)
        if kind == "function":
            return self._function(text)
        if kind == "words":
            return Words(text)
        if kind == "begin":
            return self._environment(text)
        if text in tokens.CURRENCIES:
            value = self._nested(self._primary)
            return Quantity(value, UNITS[tokens.CURRENCIES[text]])
        if text in ("|", r"\lvert", r"\vert"):
            return self._absolute("|" if text == "|" else {r"\lvert": r"\rvert", r"\vert": r"\vert"}[text])
        if text == "{":
            return self._group()
        if text in tokens.OPENINGS:
            return self._nested(lambda: self._brackets(tokens.OPENINGS[text]))
        if kind == "command":
            return self._command(text)
        raise ParseError(f"unexpected {text!r}")

    def _mixed(self, whole: Number) -> Node:
        r"""A mixed number: `3\frac{1}{2}` or `3 1/2`; else the number."""
        if whole.value.denominator != 1 or whole.digits:
            return whole
        start = self._position
        saved = self._tokens[start : start + 3]
        part: Fraction | None = None
        if (
            self._kind() == "number"
            and self._tokens[start].spaced
            and self._text(1) == "/"
            and self._kind(2) == "number"
        ):
            above, below = self._text(), self._text(2)
            if above.isdigit() and below.isdigit() and int(below):
                part = Fraction(int(above), int(below))
                self._position += 3
        elif self._is(*tokens.FRACTIONS):
            self._next()
            try:
                above_node, below_node = self._digit_argument(), self._digit_argument()
            except ParseError:
                above_node = below_node = whole
            if isinstance(above_node, Number) and isinstance(below_node, Number) and below_node.value:
                part = above_node.value / below_node.value
        if part is not None and 0 < part < 1:
            return Number(whole.value + part)
        self._position = start
        self._tokens[start : start + 3] = saved
        return whole

    def _group(self) -> Node:
        if self._is("}"):
            raise ParseError("an empty group")
        bars, self._bars = self._bars, 0
        node = self._nested(self._list)
        if self._is(r"\choose"):
            self._next()
            node = Operation("binomial", (node, self._nested(self._sum)))
        self._expect("}")
        self._bars = bars
        return node

    def _absolute(self, closing: str) -> Node:
        self._bars += 1
        node = self._nested(self._sum)
        self._expect(closing)
        self._bars -= 1
        return Operation("abs", (node,))

    def _brackets(self, opening: str) -> Node:
        bars, self._bars = self._bars, 0
        if self._text() in tokens.CLOSINGS:
            closing = tokens.CLOSINGS[self._next().text]
            if opening + closing != "{}":
                raise ParseError("empty brackets")
            self._bars = bars
            return Collection("{}", ())
        if opening == "{" and (found := self._set_builder()) is not None:
            self._bars = bars
            return found
        is_reversed, self._is_reversed = self._is_reversed, opening == "]"
        inside = self._list()
        closing = tokens.CLOSINGS.get(self._next().text, "")
        self._bars, self._is_reversed = bars, is_reversed
        pair = opening + closing
        if pair not in tokens.PAIRS:
            raise ParseError(f"brackets {pair}")
        is_list = isinstance(inside, Collection) and not inside.brackets
        items = inside.items if is_list and isinstance(inside, Collection) else (inside,)
        if pair == "{}":
            return Collection(pair, items)
        if len(items) == 1:
            if pair not in ("()", "[]"):
                raise ParseError("brackets around one item")
            return inside
        if "]" in pair[0] or "[" in pair[1]:
            pair = ("(" if pair[0] == "]" else pair[0]) + (")" if pair[1] == "[" else pair[1])
        return Collection("()" if pair == "<>" else pair, items)

    def _set_builder(self) -> Node | None:
        r"""The condition of `\{x \mid condition\}`, or None for another set."""
        start = self._position
        if self._kind() != "name":
            return None
        depth = 0
        for position in range(start, len(self._tokens)):
            token = self._tokens[position]
            depth += {r"\{": 1, r"\}": -1}.get(token.text, 0)
            if depth < 0 or token.kind == "joint":
                return None
            if token.text in (r"\mid", "|", ":") and position - start in (1, 3, 6):
                self._position = position + 1
                condition = self._list()
                self._expect(r"\}")
                return condition
        return None

    def _environment(self, name: str) -> Node:
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        while True:
            if self._kind() == "end":
                self._next()
                break
            row.append(self._nested(self._list))
            if self._is("&"):
                self._next()
                continue
            rows.append(tuple(row))
            row = []
            if self._is("\\\\"):
                self._next()
            elif self._kind() != "end":
                raise ParseError("a matrix")
        if not rows or row or len({len(each) for each in rows}) != 1:
            raise ParseError("a matrix with rows of unequal lengths")
        if name in ("vmatrix", "Vmatrix"):
            raise UnsupportedError("a determinant")
        if name == "cases":
            return Collection("cases", tuple(Collection("cases", each) for each in rows))
        return Matrix(tuple(rows))

    def _function(self, name: str) -> Node:
        if name not in tokens.FUNCTIONS:
            raise UnsupportedError(f"the function {name}")
        exponent: Node | None = None
        base: Node | None = None
        while self._is("^", "_"):
            if self._next().text == "^":
                exponent = self._argument()
            else:
                base = self._argument()
        if name == "sqrt" and self._is("["):
            raise ParseError("a root")
        has_brackets = self._is("(", "[", "{", r"\{")
        inside = self._nested(self._primary) if has_brackets else self._bare_argument()
        is_list = isinstance(inside, Collection) and inside.brackets in ("()", "", "{}")
        operands = inside.items if is_list and isinstance(inside, Collection) else (inside,)
        if (
            not operands
            or not all(map(is_expression, operands))
            or (len(operands) > 1 and name not in ("max", "min", "gcd", "lcm"))
        ):
            raise ParseError(f"an argument of {name}")
        if base is not None and name not in ("log",):
            raise ParseError(f"a subscript of {name}")
        if exponent == Operation("-", (Number(Fraction(1)),)) and name in tokens.WITH_INVERSE:
            return Operation(f"arc{name}", operands)
        node = Operation(tokens.ALIASES.get(name, name), (*operands, base) if base is not None else operands)
        return node if exponent is None else Operation("^", (node, exponent))

    def _bare_argument(self) -> Node:
        """Factors after the name of a function without brackets."""
        sign = self._signs()
        factors = [self._power()]
        while (
            self._starts_factor()
            and self._kind() not in ("function", "number", "begin")
            and not (self._kind() == "command" and self._text()[1:] in tokens.FUNCTIONS)
            and not self._is("(", "{")
        ):
            factors.append(self._power())
        if factors[-1] == Constant("pi") and self._is("/") and self._kind(1) == "number":
            self._next()
            factors.append(Operation("reciprocal", (self._power(),)))
        node = _product(factors)
        return Operation(sign, (node,)) if sign else node

    def _command(self, text: str) -> Node:
        name = text[1:]
        if text in tokens.FRACTIONS:
            above = self._digit_argument()
            return Operation("/", (above, self._digit_argument()))
        if text in tokens.BINOMIALS:
            above = self._digit_argument()
            return Operation("binomial", (above, self._digit_argument()))
        if text == r"\sqrt":
            index: Node = Number(Fraction(2))
            if self._is("["):
                self._next()
                index = self._nested(self._sum)
                self._expect("]")
            return Operation("root", (self._digit_argument(), index))
        if name in tokens.FUNCTIONS:
            return self._function(name)
        if text in (r"\lfloor", r"\lceil"):
            node = self._nested(self._sum)
            self._expect(text.replace(r"\l", r"\r"))
            return Operation("floor" if text == r"\lfloor" else "ceil", (node,))
        if text == r"\mathbb":
            raw = self._raw_argument()
            if raw not in tokens.NAMED_SETS:
                raise ParseError("a set")
            return Constant(tokens.NAMED_SETS[raw])
        if text in tokens.DOTS:
            return Constant("ellipsis")
        if text in (r"\pi", r"\infty"):
            return Constant("pi" if text == r"\pi" else "infinity")
        if text in (r"\emptyset", r"\varnothing"):
            return Collection("{}", ())
        if text in (r"\imath", r"\i"):
            return Constant("i")
        if text in (r"\angle", r"\triangle", r"\square"):
            return Symbol(name)
        if text in tokens.VECTORS:
            return Symbol(f"vector {self._raw_argument()}")
        if text in tokens.BOLD | tokens.TRANSPARENT | tokens.ACCENTS:
            return self._accented(text)
        if name in tokens.SYMBOLS:
            return Symbol(name)
        if text in tokens.UNSUPPORTED:
            raise UnsupportedError(f"the operator {text}")
        raise ParseError(f"the command {text}")

    def _accented(self, text: str) -> Node:
        start = self._position
        raw = self._raw_argument()
        if text in tokens.BOLD and raw in ("i", "j", "k", "e"):
            return Symbol(f"vector {raw}")
        if text in tokens.BOLD | tokens.TRANSPARENT:
            self._position = start
            return self._nested(self._primary)
        return Symbol(f"{text[1:].replace('overline', 'bar')} {raw}")


def _product(factors: list[Node]) -> Node:
    if len(factors) == 1:
        return factors[0]
    if len(factors) == 2 and isinstance(factors[1], Matrix):
        scalar = factors[0]
        return Matrix(tuple(tuple(Operation("*", (scalar, each)) for each in row) for row in factors[1].rows))
    return Operation("*", tuple(factors))


def _number(text: str) -> Number:
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_EXPONENT:
        raise SizeLimitError(f"the answer has a number with more than {MAX_EXPONENT} digits")
    digits = len(mantissa.replace(".", "").lstrip("0")) if "." in mantissa else 0
    whole, _, fraction = mantissa.partition(".")
    value = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction))
    return Number(value * Fraction(10) ** int(exponent or 0), digits, len(fraction) - int(exponent or 0))


def _numeral(digits: str, base: str) -> Numeral:
    number = tokens.NAMED_BASES.get(base, int(base) if base.isdigit() and len(base) < 3 else 0)
    if not 2 <= number <= 36 or any(int(each, 36) >= number for each in digits):
        raise ParseError("digits in a base")
    return Numeral(digits.lstrip("0") or "0", number)


def _renamed(node: Node, suffix: str) -> Symbol:
    if not isinstance(node, Symbol):
        raise ParseError("a prime or a subscript")
    return Symbol(node.name + suffix)


def _is_money(unit: Unit) -> bool:
    return len(unit.powers) == 1 and next(iter(unit.powers))[0] in (
        "dollar",
        "euro",
        "sterling",
        "yen",
        "rupee",
    )
