"""Numbers as people read them, in the console and in the report."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """`3.2 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for larger, smaller, size in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if whole >= size:
            rest = whole % size // (size // (24 if larger == "d" else 60))
            return f"{whole // size} {larger}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("a minute or more has a minute in it")


def number(value: float) -> str:
    """Three or four figures that count: `12,310`, `0.531`, `1.2e-05`."""
    if value == 0 or (value == int(value) and abs(value) < 1e9):
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.001:
        return f"{value:.3f}"
    return f"{value:.1e}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as blocks of different heights."""
    shown = values[-width:]
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    if span == 0:
        return _BLOCKS[3] * len(shown)
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in shown)
