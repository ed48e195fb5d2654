"""Formatting of numbers, durations, times and curves as text, for the console and the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

_BLOCKS = "▁▂▃▄▅▆▇█"


def format_duration(seconds: float) -> str:
    """Format a duration with one or two units: `3.2 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    for larger, smaller, size in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if rounded >= size:
            rest = rounded % size // (size // (24 if larger == "d" else 60))
            return f"{rounded // size} {larger}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError(f"{rounded} seconds are less than a minute")


def format_time(stamp: str) -> str:
    """Format an ISO time as `21 Nov 2026, 14:03 UTC`."""
    return f"{datetime.fromisoformat(stamp):%-d %b %Y, %H:%M} UTC"


def format_number(value: float) -> str:
    """Format a number with three or four significant digits: `12,310`, `0.531`, `1.2e-05`."""
    if not math.isfinite(value):
        return str(value)
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
    """Draw the last `width` values as block characters of different heights."""
    shown = values[-width:]
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    if span == 0:
        return _BLOCKS[3] * len(shown)
    return "".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in shown)


def format_steps(steps: Sequence[int]) -> str:
    """Format increasing steps: `step 3`, `steps 1 to 4`, `steps 2, 5 to 7`."""
    ranges: list[list[int]] = []
    for step in steps:
        if ranges and ranges[-1][1] == step - 1:
            ranges[-1][1] = step
        else:
            ranges.append([step, step])
    words = [str(first) if first == last else f"{first} to {last}" for first, last in ranges]
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(words)}"
