"""Values that carry their unit: `20 steps`, `5 epochs`, `16384 tokens`, `10 %`, `never`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from strop.config.redact import redact, redacted_repr

Unit = Literal["steps", "updates", "epochs", "tokens", "sequences", "%"]

Rounding = Literal["down", "up"]
"""Rounding of a percentage to whole steps or updates."""
MAX_SECONDS = 1_000_000
"""Largest time limit, 11 days; a system call waits for at most 24 days."""
_MAX_COUNT = 1e15
_AMOUNT = re.compile(r"^\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([a-z%]+)\s*$")


@dataclass(frozen=True, slots=True)
class Amount:
    """Number with a unit."""

    count: float
    unit: Unit

    def __str__(self) -> str:
        number = int(self.count) if float(self.count).is_integer() else self.count
        return f"{number} {self.unit[:-1] if number == 1 and self.unit != '%' else self.unit}"


def parse_amount(value: Any, units: tuple[Unit, ...], *, whole: bool = True) -> Amount:
    """Parse a text such as `20 steps`. Raises ValueError with the expected form for anything else."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 20
    unit = "steps" if "steps" in units else units[0]
    wanted = f"a number with its unit ({', '.join(units)}), such as '{number} {unit}'"
    if isinstance(value, Amount):
        amount = value
    else:
        match = _AMOUNT.match(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected {wanted}, got {redacted_repr(value)}")
        word = match[2]
        named = next((u for u in units if word in (u, u.rstrip("s"))), None)
        if named is None:
            raise ValueError(f"expected {wanted}, got the unit {word!r}")
        amount = Amount(float(match[1].replace("_", "")), named)
    if not amount.count <= _MAX_COUNT:
        raise ValueError(f"the number of {amount.unit} is above {_MAX_COUNT:g}; write a smaller one")
    if amount.unit not in units:
        raise ValueError(f"expected {wanted}, got {str(amount)!r}")
    if whole and amount.unit not in ("%", "epochs") and not float(amount.count).is_integer():
        raise ValueError(f"the number of {amount.unit} must be an integer, got {amount.count}")
    return amount


@dataclass(frozen=True, slots=True)
class AllowedUnits:
    """Units that a field accepts, for the reference and `explain`."""

    units: tuple[Unit, ...]
    never: bool


def _field(units: tuple[Unit, ...], *, never: bool = False, positive: bool = True) -> Any:
    def read(value: Any) -> Amount | None:
        if never and (value is None or value == "never"):
            return None
        amount = parse_amount(value, units)
        if positive and amount.count <= 0:
            hint = "; write 'never' for none" if never else ""
            raise ValueError(f"must be more than zero, got {str(amount)!r}{hint}")
        return amount

    def write(value: Amount | None) -> str:
        return "never" if value is None else str(value)

    kinds = "|".join("%" if unit == "%" else f"{unit.rstrip('s')}s?" for unit in units)
    pattern = rf"^\s*[0-9][0-9_.eE+-]*\s*({kinds})\s*$" + ("|^never$" if never else "")
    return [
        AllowedUnits(units, never),
        BeforeValidator(read),
        PlainSerializer(write, return_type=str),
        WithJsonSchema({"type": ["string", "null"] if never else "string", "pattern": pattern}),
    ]


Interval = Annotated[Amount | None, *_field(("steps", "updates", "epochs"), never=True)]
"""Interval between two events; `never` is None."""
Duration = Annotated[Amount, *_field(("epochs", "steps", "updates"))]
"""Length of a run. Epochs may be fractional."""
RunLimit = Annotated[Amount | None, *_field(("epochs", "steps"), never=True)]
"""Earlier end of a run; `never` is None."""
MicroBatchSize = Annotated[Amount, *_field(("tokens", "sequences"))]
"""Size of a micro-batch. It changes memory, never the gradient."""
WarmupLength = Annotated[Amount, *_field(("steps", "updates", "%"), positive=False)]
"""Length of a schedule's warm-up; `%` is of the whole run."""
ScheduleLength = Annotated[Amount, *_field(("steps", "updates", "%"))]
"""Length of a part of a run; `%` is of the whole run unless the field's docstring names another base."""
Steps = Annotated[Amount, *_field(("steps",))]
"""Number of steps, at least 1."""
NonNegativeSteps = Annotated[Amount, *_field(("steps",), positive=False)]
"""Number of steps, 0 or more."""


def format_value(name: str, value: Any) -> str:
    """Format a value for printing, without its unit."""
    if isinstance(value, Amount):
        return str(value).split()[0]
    if value is None:
        return "never" if name.endswith("every") else "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(str(redact(item, name)) for item in value) + "]"
    return str(redact(value, name))
