"""The curves of a report. The colours of ink and grid come from the page's own style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import cycle

import plotly.graph_objects as go
import plotly.io as pio

from strop.report.contents import Contents
from strop.run.metrics import metric_of

# Told apart by people who see few colours, and readable on white and on black (Okabe and Ito's, toned).
_COLOURS = ("#2f7fc1", "#d9822b", "#3a9d78", "#b86aa5", "#c2a12c", "#7d8896", "#cf5c4b")
_HEIGHT = 230
_PART = "reward/part/"
_SAID_ABOVE = (
    "eval",
    "reward/part",
    "response_tokens",
    "clip_fraction",
    "groups",
    "rollouts",
    "staleness",
    "importance",
)
"""What a chart's title says of its metrics' names already."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: which metrics stand in it."""

    title: str
    metrics: tuple[str, ...]
    """Names, or patterns of names."""
    smooth: bool = False
    """Draw the first metric's running mean over its values."""
    only_if_above_0: bool = False
    """Leave it out of runs in which it has nothing to say: they take turns, say."""


PANELS = (
    Panel("Held-out reward", ("eval/*/reward", "eval/*/pass@*")),
    Panel("Training reward", ("reward/mean", "reward/part/*"), smooth=True),
    Panel("Held-out loss", ("eval/*/loss",)),
    Panel("Loss on given answers", ("sft_loss", "dpo_loss"), smooth=True),
    Panel("Margin between chosen and rejected answers", ("dpo/margin", "eval/*/dpo/margin"), smooth=True),
    Panel("Preferences met", ("dpo/accuracy", "eval/*/dpo/accuracy")),
    Panel("Distance from the reference", ("kl/ref",)),
    Panel("Entropy", ("entropy",)),
    Panel("Length of the answers", ("response_tokens/mean", "response_tokens/max", "eval/*/response_tokens")),
    Panel("Groups and rollouts that teach nothing", ("groups/no_signal_share", "rollouts/*_share")),
    Panel("Clipped tokens", ("clip_fraction", "clip_fraction/*")),
    Panel("Gradient", ("grad_norm",)),
    Panel("Learning rate", ("lr",)),
    Panel("Sampler against trainer", ("logprob_diff/mean_abs",)),
    Panel("Age of the weights that sampled", ("staleness/mean", "staleness/max"), only_if_above_0=True),
    Panel("Importance weights", ("importance/mean", "importance/capped_share")),
    Panel("Speed", ("tokens_per_second",)),
)
_PHASES = ("sample", "reward", "logprobs", "update", "publish", "evaluate", "save")


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as HTML, with the words that stand around it."""

    title: str
    unit: str
    caption: str
    legend: tuple[tuple[str, str], ...]
    """Each line's name and colour, where there is more than one."""
    html: str


def make_charts(contents: Contents) -> list[Chart]:
    """A chart for each panel of which anything was measured. The first one brings plotly along."""
    charts: list[Chart] = []
    for panel in PANELS:
        names = [name for pattern in panel.metrics for name in contents.names() if fnmatchcase(name, pattern)]
        names = [name for name in dict.fromkeys(names) if contents.series(name)[0]]
        if panel.only_if_above_0 and not any(any(contents.series(name)[1]) for name in names):
            continue
        if sum(name.startswith(_PART) for name in names) == 1:
            # A lone part is the reward itself, but for its weight.
            names = [name for name in names if not name.startswith(_PART)]
        if names:
            charts.append(_curves(contents, panel, names, first=not charts))
    if any(contents.series(_phase(phase))[0] for phase in _PHASES):
        charts.append(_time(contents, first=not charts))
    return charts


def _curves(contents: Contents, panel: Panel, names: Sequence[str], *, first: bool) -> Chart:
    figure = _figure()
    legend = []
    for name, colour in zip(names, cycle(_COLOURS), strict=False):
        steps, values = contents.series(name)
        label = _label(name, names)
        if panel.smooth and name == names[0] and len(values) >= 20:
            window = max(2, len(values) // 15)
            _line(figure, steps, values, label, colour, opacity=0.4, width=1)
            label = f"{label}, mean of {window} steps"
            values = _running_mean(values, window)
        _line(figure, steps, values, label, colour)
        legend.append((label, colour))
    metric = metric_of(names[0])
    shown = tuple(legend) if len(figure.data) > 1 else ()
    return Chart(panel.title, metric.unit, metric.definition, shown, _html(figure, first))


def _time(contents: Contents, *, first: bool) -> Chart:
    figure = _figure()
    legend = []
    for phase, colour in zip(_PHASES, _COLOURS, strict=True):
        steps, seconds = contents.series(_phase(phase))
        if any(seconds):
            figure.add_bar(
                x=steps, y=seconds, name=phase, marker={"color": colour}, hovertemplate="%{y:.2f} s"
            )
            legend.append((phase, colour))
    figure.update_layout(barmode="stack", bargap=0.1)
    figure.update_traces(marker_line_width=0)
    caption = "Where each step's seconds went; evaluating and saving come on top of the step itself."
    return Chart("Time by phase", "seconds", caption, tuple(legend), _html(figure, first))


def _figure() -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        height=_HEIGHT,
        margin={"l": 48, "r": 12, "t": 8, "b": 36},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        hovermode="x unified",
        showlegend=False,
    )
    figure.update_xaxes(
        title={"text": "step", "standoff": 4}, zeroline=False, showgrid=False, rangemode="tozero"
    )
    # From zero, so that noise looks as small as it is.
    figure.update_yaxes(zeroline=False, nticks=6, rangemode="tozero", exponentformat="e")
    return figure


def _line(
    figure: go.Figure,
    steps: Sequence[int],
    values: Sequence[float],
    label: str,
    colour: str,
    *,
    opacity: float = 1.0,
    width: float = 2.0,
) -> None:
    figure.add_scatter(
        x=steps,
        y=values,
        name=label,
        mode="lines+markers" if len(values) <= 40 else "lines",
        line={"color": colour, "width": width},
        marker={"size": 5},
        opacity=opacity,
        hovertemplate="%{y:.4g}",
    )


def _html(figure: go.Figure, first: bool) -> str:
    html: str = pio.to_html(
        figure,
        full_html=False,
        include_plotlyjs=first,
        default_height=f"{_HEIGHT}px",
        config={"displayModeBar": False, "responsive": True},
    )
    return html


def _running_mean(values: Sequence[float], window: int) -> list[float]:
    """The mean of the last `window` values at each point; of fewer at the beginning."""
    spans = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(span) / len(span) for span in spans]


def _phase(phase: str) -> str:
    return f"time/{phase}_seconds"


def _label(name: str, names: Sequence[str]) -> str:
    """The name without what the chart's title says already: `format` of `reward/part/format`."""
    if name == "reward/mean":
        return "reward"
    if len(names) > 1:
        for above in _SAID_ABOVE:
            name = name.removeprefix(f"{above}/")
    return name.replace("_", " ")
