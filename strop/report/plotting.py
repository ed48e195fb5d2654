"""Series of the charts of reports and Studio, as `static/charts.js` draws them with uPlot."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup

from strop.runs.reader import RunData

STATIC = Path(__file__).parent / "static"
# Distinguishable with color blindness and readable on white and on black: muted Okabe-Ito colors.
COLORS = ("#2f7fc1", "#d9822b", "#3a9d78", "#b86aa5", "#c2a12c", "#7d8896", "#cf5c4b")
_MAX_POINTS = 2000
"""Points that a line has at most; a longer series keeps the extremes of each stretch."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one line, or of one part of stacked bars."""

    label: str
    color: str
    steps: Sequence[int]
    values: Sequence[float]
    run: int = 0
    """Index of its run among the page's clocks."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its title, its unit, the definition of its first metric, and its lines."""

    title: str
    unit: str
    caption: str
    series: tuple[Series, ...]
    is_smoothed: bool = False
    """Whether the first line is drawn smoothed, over its values, until the reader chooses otherwise."""
    is_stacked: bool = False

    @property
    def json(self) -> str:
        """The chart for the script, as JSON."""
        series = []
        for one in self.series:
            points = thin(one.steps, one.values)
            steps, values = [step for step, _ in points], [float(f"{value:.6g}") for _, value in points]
            series.append(
                {"label": one.label, "color": one.color, "run": one.run, "steps": steps, "values": values}
            )
        shown = {"title": self.title, "unit": self.unit, "series": series}
        return json.dumps(shown | {"smoothed": self.is_smoothed, "stacked": self.is_stacked})


def clocks(runs: Sequence[RunData]) -> str:
    """Seconds and tokens after each step of each run, for the other horizontal axes, as JSON."""
    return json.dumps([_clock(run) for run in runs])


def _clock(run: RunData) -> dict[str, list[float]]:
    seconds, tokens = 0.0, 0.0
    rows: list[tuple[int, float, float]] = []
    for row in run.rows:
        seconds += sum(row.get(f"time/{part}_seconds") or 0.0 for part in ("step", "evaluate", "save"))
        tokens += row.get("trained_tokens") or row.get("sampled_tokens") or 0.0
        rows.append((int(row["step"] or 0), round(seconds, 2), tokens))
    rows = rows[:: -(-len(rows) // _MAX_POINTS) or 1] + rows[-1:]
    return {name: [row[place] for row in rows] for place, name in enumerate(("steps", "seconds", "tokens"))}


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


@cache
def static_text(name: str) -> Markup:
    """A file of the folder `static`, to write into a page as it is."""
    return Markup((STATIC / name).read_text(encoding="utf-8"))
