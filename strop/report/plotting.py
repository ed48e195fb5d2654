"""Charts of the reports as SVG: lines and stacked bars over steps. Colors of text and grid are in the style sheet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from strop.runs.formatting import format_number

# Distinguishable with color blindness and readable on white and on black: muted Okabe-Ito colors.
COLORS = ("#2f7fc1", "#d9822b", "#3a9d78", "#b86aa5", "#c2a12c", "#7d8896", "#cf5c4b")
_WIDTH, _HEIGHT = 480, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 38
"""Margins around the plotted area, for the labels of the axes."""
_MAX_POINTS = 400
"""Points that a line has at most; a longer series keeps the extremes of each stretch."""
_MAX_MARKS = 40
"""Points up to which a line has a mark at each."""
_MAX_TIPS = 200
"""Steps up to which each has a tooltip; of more, every n-th has one."""
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as HTML, with title, unit, caption and legend."""

    title: str
    unit: str
    caption: str
    legend: tuple[tuple[str, str], ...]
    """Name and color of each line; empty for a single line."""
    html: str


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one line, or of one part of stacked bars."""

    label: str
    color: str
    steps: Sequence[int]
    values: Sequence[float]
    opacity: float = 1.0
    width: float = 2.0


@dataclass(frozen=True, slots=True)
class _Axes:
    """Scale of a chart; both axes include 0, so that noise is not exaggerated."""

    last_step: int
    low: float
    high: float

    @classmethod
    def around(cls, steps: Iterable[int], values: Sequence[float]) -> _Axes:
        ticks = nice_ticks(min(0.0, *values), max(0.0, *values))
        return cls(max(1, *steps), ticks[0], ticks[-1])

    def x(self, step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / self.last_step

    def y(self, value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (self.high - value) / (self.high - self.low)


def line_chart(lines: Sequence[Series]) -> str:
    """SVG of lines; a short line has a mark at each value."""
    axes = _Axes.around(_steps(lines), [value for line in lines for value in line.values])
    drawn = [part for line in lines for part in _line(axes, line)]
    return _svg([*_grid(axes), *drawn, *_tips(axes, lines)])


def bar_chart(parts: Sequence[Series]) -> str:
    """SVG of one bar for each step, in which the parts are stacked."""
    steps = _steps(parts)
    values = [dict(zip(part.steps, part.values, strict=True)) for part in parts]
    totals = [sum(of_part.get(step, 0.0) for of_part in values) for step in steps]
    axes = _Axes.around([*steps, steps[-1] + 1], totals)
    width = max(0.5, 0.9 * (axes.x(1) - axes.x(0)))
    bars = []
    for step in steps[:: math.ceil(len(steps) / _MAX_POINTS)]:
        base = 0.0
        for part, of_part in zip(parts, values, strict=True):
            top = base + of_part.get(step, 0.0)
            y, height = axes.y(top), axes.y(base) - axes.y(top)
            x = axes.x(step) - width / 2
            bars.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{part.color}"/>'
            )
            base = top
    return _svg([*_grid(axes), *bars, *_tips(axes, parts)])


def nice_ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers at equal distances, of which the first is at most `low`, the last at least `high`."""
    if high <= low:
        high = low + 1
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    distance = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
    return [number * distance for number in range(first, last + 1)]


def _steps(series: Sequence[Series]) -> list[int]:
    return sorted({step for one in series for step in one.steps})


def _grid(axes: _Axes) -> Iterator[str]:
    for value in nice_ticks(axes.low, axes.high):
        y = axes.y(value)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick_text(value)}</text>'
    for step in nice_ticks(0, axes.last_step):
        if step <= axes.last_step and step == int(step):
            yield (
                f'<text x="{axes.x(step):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{int(step):,}</text>'
            )
    yield f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 5}" text-anchor="middle">step</text>'


def _tick_text(value: float) -> str:
    return "0" if value == 0 else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _line(axes: _Axes, line: Series) -> Iterator[str]:
    points = [(axes.x(step), axes.y(value)) for step, value in thin(line.steps, line.values)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    style = f'stroke="{line.color}" stroke-width="{line.width}" opacity="{line.opacity}"'
    yield f'<path class="line" d="{path}" {style}/>'
    if len(points) <= _MAX_MARKS:
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{line.color}"/>' for x, y in points)


def thin(steps: Sequence[int], values: Sequence[float]) -> list[tuple[int, float]]:
    """The points of a line; of a long one the smallest and the largest value of each of equal stretches."""
    points = list(zip(steps, values, strict=True))
    if len(points) <= _MAX_POINTS:
        return points
    stretches = _MAX_POINTS // 2
    bounds = [round(number * len(points) / stretches) for number in range(stretches + 1)]
    kept: list[tuple[int, float]] = []
    for begin, end in itertools.pairwise(bounds):
        extremes = {min(points[begin:end], key=lambda p: p[1]), max(points[begin:end], key=lambda p: p[1])}
        kept += sorted(extremes)
    return kept


def _tips(axes: _Axes, series: Sequence[Series]) -> Iterator[str]:
    """Invisible columns whose tooltips have the values of all series at a step."""
    values = [(one.label, dict(zip(one.steps, one.values, strict=True))) for one in series]
    steps = _steps(series)
    shown = steps[:: math.ceil(len(steps) / _MAX_TIPS)]
    edges = [axes.x((a + b) / 2) for a, b in itertools.pairwise(shown)]
    lefts, rights = [axes.x(0) - 6, *edges], [*edges, axes.x(axes.last_step) + 6]
    for step, left, right in zip(shown, lefts, rights, strict=True):
        rows = [f"{label}: {format_number(of_one[step])}" for label, of_one in values if step in of_one]
        title = escape("\n".join([f"step {step:,}", *rows]))
        yield (
            f'<rect class="tip" x="{left:.1f}" y="{_TOP}" width="{max(right - left, 0.1):.1f}" '
            f'height="{_HEIGHT - _TOP - _BOTTOM}"><title>{title}</title></rect>'
        )


def _svg(elements: Iterable[str]) -> str:
    return f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(elements)}</svg>'
