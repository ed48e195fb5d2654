"""Units of measurement after a number: length, mass, time, volume, money, and counted things."""

from __future__ import annotations

import re
from fractions import Fraction

from strop.rewards.mathematics.nodes import ParseError, Unit

_BASES: dict[str, tuple[str, dict[str, str]]] = {
    "length": (
        "m",
        {
            "nm nanometer": "1/1000000000",
            "mm millimeter": "1/1000",
            "cm centimeter": "1/100",
            "dm decimeter": "1/10",
            "m meter": "1",
            "km kilometer": "1000",
            "in inch": "0.0254",
            "ft foot feet": "0.3048",
            "yd yard": "0.9144",
            "mi mile": "1609.344",
        },
    ),
    "mass": (
        "kg",
        {
            "mg milligram": "1/1000000",
            "g gram": "1/1000",
            "kg kilogram": "1",
            "tonne": "1000",
            "oz ounce": "0.028349523125",
            "lb pound": "0.45359237",
        },
    ),
    "time": (
        "s",
        {
            "ms millisecond": "1/1000",
            "s sec second": "1",
            "min minute": "60",
            "h hr hour": "3600",
            "day": "86400",
            "week": "604800",
        },
    ),
    "money": ("dollar", {"cent ¢": "1/100", "dollar $ usd USD": "1"}),
    "euro": ("euro", {"euro € eur EUR": "1"}),
    "sterling": ("sterling", {"£ gbp GBP": "1"}),
    "yen": ("yen", {"yen ¥ jpy": "1"}),
    "rupee": ("rupee", {"rupee ₹ inr INR rs Rs": "1"}),
    "degree": ("degree", {"degree deg": "1"}),
    "volt": ("volt", {"V volt": "1"}),
    "newton": ("newton", {"N newton": "1"}),
    "joule": ("joule", {"J joule": "1", "kJ kilojoule": "1000"}),
    "watt": ("watt", {"W watt": "1", "kW kilowatt": "1000"}),
    "kelvin": ("kelvin", {"K kelvin": "1"}),
    "mole": ("mole", {"mol mole": "1"}),
    "hertz": ("hertz", {"Hz hertz": "1", "kHz": "1000", "MHz": "1000000"}),
    "pascal": ("pascal", {"Pa pascal": "1", "kPa": "1000"}),
    "byte": (
        "byte",
        {"byte": "1", "KB kilobyte": "1000", "MB megabyte": "1000000", "GB gigabyte": "1000000000"},
    ),
}
_DERIVED: dict[str, tuple[str, dict[str, int]]] = {
    "l L liter": ("1/1000", {"m": 3}),
    "ml mL milliliter": ("1/1000000", {"m": 3}),
    "gal gallon": ("0.003785411784", {"m": 3}),
    "ha hectare": ("10000", {"m": 2}),
    "acre": ("4046.8564224", {"m": 2}),
    "mph": ("0.44704", {"m": 1, "s": -1}),
    "kmh kph": ("5/18", {"m": 1, "s": -1}),
}
UNITS: dict[str, Unit] = {
    name: Unit(Fraction(factor), frozenset({(base, 1)}))
    for base, units in _BASES.values()
    for names, factor in units.items()
    for name in names.split()
} | {
    name: Unit(Fraction(factor), frozenset(powers.items()))
    for names, (factor, powers) in _DERIVED.items()
    for name in names.split()
}
"""Unit of each name and abbreviation."""
LETTERS = frozenset(name for name in UNITS if len(name) == 1)
"""Upright letters that are units after a number."""
SHORT = frozenset(name for name in UNITS if len(name) > 1)
"""Names that are units after a number also in italics."""
MULTIPLES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Number words that multiply the number before them."""
_IGNORED = re.compile(
    r"of|the|an?|in|total|approximately|about|exactly|only|each|more|is|are|altogether|long|tall|wide|th|st|nd|rd"
)
"""Words that change no unit, and endings of ordinal numbers."""
_WORD = re.compile(r"[A-Za-z$€£¥₹¢°%]+|[/^]|-?\d+")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
ANY = "unit"
"""Base unit of the word `units`, which agrees with each unit."""


def parse_unit(text: str) -> tuple[Unit, int]:
    """Unit that a text names, and the multiple that it has (`million`).

    Raises ParseError for a text that is no unit.
    """
    factor, multiple = Fraction(1), 1
    powers: dict[str, int] = {}
    sign, pending = 1, 1
    last: Unit | None = None
    tokens = _WORD.findall(text.replace("-", " ") if not re.search(r"\^\s*-", text) else text)
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token in ("/", "per"):
            sign = -1
            continue
        if token == "^" or (token.isdigit() and last is not None):
            if token == "^":
                if position >= len(tokens) or not re.fullmatch(r"-?\d", tokens[position]):
                    raise ParseError("an exponent of a unit")
                token = tokens[position]
                position += 1
            if last is None or not re.fullmatch(r"-?\d", token):
                raise ParseError("an exponent of a unit")
            factor, powers = _multiplied(factor, powers, last, sign * (int(token) - 1))
            continue
        if not token[0].isalpha() and token not in UNITS:
            raise ParseError(f"{token!r} in a unit")
        lower = token.lower()
        if lower in _POWERS:
            if lower.endswith("ed"):
                if last is not None:
                    factor, powers = _multiplied(factor, powers, last, sign * (_POWERS[lower] - 1))
            else:
                pending = _POWERS[lower]
            continue
        if lower in MULTIPLES:
            multiple *= MULTIPLES[lower]
            continue
        if _IGNORED.fullmatch(lower) and not (lower == "in" and last is None):
            continue
        last = unit_of(token)
        factor, powers = _multiplied(factor, powers, last, sign * pending)
        pending = 1
    return Unit(factor, frozenset((base, power) for base, power in powers.items() if power)), multiple


def unit_of(word: str) -> Unit:
    """Unit of a word; a word without a known unit is a unit of its own, in the singular."""
    found = UNITS.get(word) or UNITS.get(word.lower())
    if found is not None:
        return found
    singular = re.sub(r"(?<=[et])re(?=s?$)", "er", word.lower())  # British spelling
    for ending, replacement in (
        ("ies", "y"),
        ("ches", "ch"),
        ("shes", "sh"),
        ("xes", "x"),
        ("sses", "ss"),
        ("s", ""),
    ):
        if singular.endswith(ending) and len(singular) > len(ending) + 1:
            singular = singular.removesuffix(ending) + replacement
            break
    return UNITS.get(singular) or Unit(Fraction(1), frozenset({(singular, 1)}))


def _multiplied(
    factor: Fraction, powers: dict[str, int], unit: Unit, exponent: int
) -> tuple[Fraction, dict[str, int]]:
    if abs(exponent) > 9:
        raise ParseError("an exponent of a unit")
    product = dict(powers)
    for base, power in unit.powers:
        product[base] = product.get(base, 0) + power * exponent
    return factor * unit.factor**exponent, product


def conversion(one: Unit, other: Unit) -> Fraction | None:
    """Factor from the first unit to the second; None where they measure different things.

    A value without a unit agrees with each unit, and so does one in `units`. Of counted things, one description may
    be longer than the other: `apples` and `red apples`.
    """
    known = {base for base, _ in one.powers ^ other.powers} & _KNOWN_BASES
    if not one.powers or not other.powers or one.powers == other.powers:
        return one.factor / other.factor if one.powers and other.powers else Fraction(1)
    if any(base == ANY for unit in (one, other) for base, _ in unit.powers):
        generic, measured = (one, other) if any(base == ANY for base, _ in one.powers) else (other, one)
        total = sum(power for _, power in measured.powers)
        return Fraction(1) if sum(power for _, power in generic.powers) == total else None
    if not known and (one.powers < other.powers or other.powers < one.powers):
        return Fraction(1)
    return None


_KNOWN_BASES = {base for unit in UNITS.values() for base, _ in unit.powers}
