"""HTML page that compares several runs: overlaid curves, final values, settings, and responses side by side."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import cycle
from pathlib import Path

from strop.report.charts import PANELS
from strop.report.page import render_page, write_page
from strop.report.plotting import COLORS, Chart, Series, clocks
from strop.runs.comparison import compare_metrics, differing_settings, run_labels, shared_samples
from strop.runs.metrics import metric_of
from strop.runs.reader import RunData

_SAMPLES = 6


def write_comparison(runs: Sequence[RunData], path: Path) -> None:
    """Write the page. Raises `RunFolderError` if it cannot be written."""
    labels = run_labels(runs)
    page = render_page(
        "compare",
        labels=list(zip(labels, cycle(COLORS), strict=False)),
        charts=overlaid_charts(runs, labels),
        clocks=clocks(runs),
        metrics=compare_metrics(runs),
        settings=differing_settings(runs),
        samples=shared_samples(runs, labels, _SAMPLES),
    )
    write_page(path, page)


def overlaid_charts(runs: Sequence[RunData], labels: Sequence[str]) -> list[Chart]:
    """One chart per metric of the report's panels that is not always 0, with a line for each run that has it."""
    names = dict.fromkeys(name for run in runs for name in run.names())
    shown = [
        name for panel in PANELS for pattern in panel.metrics for name in names if fnmatchcase(name, pattern)
    ]
    charts: list[Chart] = []
    for name in dict.fromkeys(shown):
        series = [run.series(name) for run in runs]
        if not any(any(values) for _, values in series):
            continue
        lines = tuple(
            Series(label, color, steps, values, run)
            for run, ((steps, values), label, color) in enumerate(
                zip(series, labels, cycle(COLORS), strict=False)
            )
            if values
        )
        metric = metric_of(name)
        charts.append(Chart(name, metric.unit, metric.definition, lines))
    return charts
