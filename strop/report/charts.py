"""Charts of a report and of Studio's pages: which metrics each has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import cycle

from strop.report.plotting import COLORS, Chart, Series
from strop.runs.metrics import metric_of
from strop.runs.reader import RunData

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
