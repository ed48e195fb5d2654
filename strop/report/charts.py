"""Charts of a report and of Studio's pages: which metrics each has, and their series as `charts.js` draws them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import cycle
from pathlib import Path

from markupsafe import Markup

from strop.runs.metrics import metric_of
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


_PART_PREFIX = "reward/part/"
_TITLE_PREFIXES = (
    "eval",
    "reward/part",
    "response_tokens",
    "clip_fraction",
    "groups",
    "rollouts",
    "staleness",
    "importance",
    "pipeline",
)
"""Prefixes of metric names that a chart's title already gives, and its labels omit."""


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """Definition of one chart: its title and its metrics."""

    title: str
    metrics: tuple[str, ...]
    """Names of metrics, or patterns with wildcards."""
    smooth: bool = False
    """Whether the first metric is drawn smoothed, over its values."""
    only_if_above_0: bool = False
    """Whether the chart is omitted if all its values are 0, such as the staleness of a synchronous run."""


PANELS = (
    ChartPanel("Held-out reward", ("eval/*/reward", "eval/*/pass@*")),
    ChartPanel("Training reward", ("reward/mean", "reward/part/*"), smooth=True),
    ChartPanel("Held-out loss", ("eval/*/loss",)),
    ChartPanel("Loss on given responses", ("sft_loss", "preference_loss"), smooth=True),
    ChartPanel(
        "Margin between chosen and rejected responses", ("pairs/margin", "eval/*/pairs/margin"), smooth=True
    ),
    ChartPanel("Preference accuracy", ("pairs/accuracy", "eval/*/pairs/accuracy")),
    ChartPanel("Margin between the two labels", ("labels/margin", "eval/*/labels/margin"), smooth=True),
    ChartPanel("Accuracy of labels", ("labels/accuracy", "eval/*/labels/accuracy")),
    ChartPanel("KL divergence from the reference", ("kl/ref",)),
    ChartPanel("Entropy", ("entropy",)),
    ChartPanel("Response length", ("response_tokens/mean", "response_tokens/max", "eval/*/response_tokens")),
    ChartPanel(
        "Groups and rollouts without a training signal",
        ("groups/zero_variance_fraction", "rollouts/*_fraction"),
    ),
    ChartPanel(
        "Tasks drawn by the curriculum",
        ("curriculum/drawn_rate", "curriculum/success_rate", "curriculum/explored_fraction"),
    ),
    ChartPanel(
        "Pass rates of tasks drawn by difficulty",
        ("difficulty/drawn_rate", "difficulty/observed_rate", "difficulty/rate", "difficulty/capability"),
    ),
    ChartPanel(
        "Rollouts removed by operators of buffer.pipeline",
        ("pipeline/*/removed_fraction",),
        only_if_above_0=True,
    ),
    ChartPanel(
        "Rollouts with a changed reward, by operator", ("pipeline/*/changed_fraction",), only_if_above_0=True
    ),
    ChartPanel("Mean change of the rewards, by operator", ("pipeline/*/reward_change",)),
    ChartPanel("Clipped tokens", ("clip_fraction", "clip_fraction/*")),
    ChartPanel("Gradient norm", ("grad_norm",)),
    ChartPanel("Learning rate", ("lr",)),
    ChartPanel("Difference between sampler and trainer log-probs", ("logprob_diff/mean_abs",)),
    ChartPanel(
        "Staleness of the sampling weights", ("staleness/mean", "staleness/max"), only_if_above_0=True
    ),
    ChartPanel("Importance weights", ("importance/mean", "importance/capped_fraction")),
    ChartPanel("Rejected tokens", ("rejection/token_fraction",)),
    ChartPanel("Speed", ("tokens_per_second",)),
)
_PHASES = ("sample", "reward", "logprobs", "update", "publish", "evaluate", "save")


def make_charts(data: RunData) -> list[Chart]:
    """Make a chart for each panel that has values."""
    charts: list[Chart] = []
    for panel in PANELS:
        names = [name for pattern in panel.metrics for name in data.names() if fnmatchcase(name, pattern)]
        names = [name for name in dict.fromkeys(names) if data.series(name)[0]]
        if panel.only_if_above_0 and not any(any(data.series(name)[1]) for name in names):
            continue
        if sum(name.startswith(_PART_PREFIX) for name in names) == 1:
            # A single reward component equals the reward, except for its weight.
            names = [name for name in names if not name.startswith(_PART_PREFIX)]
        if names:
            charts.append(_curves(data, panel, names))
    if any(any(data.series(_phase(phase))[1]) for phase in _PHASES):
        charts.append(_time(data))
    return charts


def _curves(data: RunData, panel: ChartPanel, names: Sequence[str]) -> Chart:
    lines = (
        Series(_label(name, names), color, *data.series(name))
        for name, color in zip(names, cycle(COLORS), strict=False)
    )
    metric = metric_of(names[0])
    return Chart(panel.title, metric.unit, metric.definition, tuple(lines), is_smoothed=panel.smooth)


def _time(data: RunData) -> Chart:
    parts = (
        Series(phase, color, *data.series(_phase(phase)))
        for phase, color in zip(_PHASES, COLORS, strict=True)
    )
    caption = "Seconds of each step by phase; evaluation and saving are not part of the step's own time."
    shown = tuple(part for part in parts if any(part.values))
    return Chart("Time by phase", "seconds", caption, shown, is_stacked=True)


def _phase(phase: str) -> str:
    return f"time/{phase}_seconds"


def _label(name: str, names: Sequence[str]) -> str:
    """Strip the prefix that the chart's title already gives: `reward/part/format` becomes `format`."""
    if name == "reward/mean":
        return "reward"
    if len(names) > 1:
        for prefix in _TITLE_PREFIXES:
            name = name.removeprefix(f"{prefix}/")
    return name.replace("_", " ")
