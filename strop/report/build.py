"""HTML reports: `report.html` of a run with its sections, `bench.html` of a benchmark, and a page that compares several
runs. Each is one self-contained page.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import cycle
from pathlib import Path
from typing import Any

from strop.errors import RunFolderError
from strop.report.charts import COLORS, PANELS, Chart, Series, clocks, make_charts
from strop.report.page import make_thumbnails, render_page, write_page
from strop.runs.comparison import compare_metrics, differing_settings, run_labels, shared_samples
from strop.runs.folder import RunFolder
from strop.runs.formatting import format_duration, format_number
from strop.runs.held_out_scores import HeldOutScores, read_held_out_scores
from strop.runs.metrics import metric_of
from strop.runs.overview import RunStatus, run_status
from strop.runs.reader import RunData, read_run
from strop.runs.samples import choose_samples
from strop.runs.task_pipeline import Table, operator_table, score_histograms
from strop.runs.verdict import MeanChange, evaluation_change, learning_faults, series_change, verdict
from strop.workers.json_text import read_object

_HEADLINE_METRICS = (
    ("eval/*/reward", "Held-out reward"),
    ("eval/*/loss", "Held-out loss"),
    ("eval/*/pairs/accuracy", "Held-out preference accuracy"),
    ("eval/*/labels/accuracy", "Held-out accuracy of labels"),
    ("reward/mean", "Training reward"),
    ("sft_loss", "Training loss"),
    ("pairs/margin", "Training margin"),
    ("labels/margin", "Training margin"),
)
"""Metrics of the headline: name or pattern, and label."""
_ENVIRONMENT = re.compile(r"\$\{oc\.env:(\w+)(?:,[^${}]*)?\}")
"""Interpolation of an environment variable, which a run folder keeps in place of its value."""


@dataclass(frozen=True, slots=True)
class HeadlineValue:
    """One number of the report's headline."""

    label: str
    value: str
    note: str
    good: bool | None = None
    """Whether the value improved; None if it did not change beyond its standard error."""


def write_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a run, finished or not; returns its path.

    Raises `RunFolderError` if the folder is not a run folder.
    """
    data = read_run(folder)
    status = run_status(data)
    samples = choose_samples(data)
    images = (name for shown in samples for sample in shown.samples for name in sample.images)
    page = render_page(
        "report",
        title=_title(data),
        outcome=status.outcome,
        message=status.message,
        subject=subject_of(data),
        verdict=verdict(data),
        faults=learning_faults(data.rows),
        headline=headline_values(data, status),
        charts=make_charts(data),
        clocks=clocks([data]),
        tasks=read_task_section(data.folder),
        scores=read_score_sections(data.folder),
        samples=samples,
        thumbnails=make_thumbnails(data.folder.images, images),
        sessions=data.sessions,
        set_aside=data.sessions[-1]["set_aside"] if data.sessions else [],
        run_file=data.run_file,
        last=_last_values(data),
        rows=len(data.rows),
    )
    path = data.folder.report
    write_page(path, page)
    return path


def write_bench(folder: Path) -> Path:
    """Write `bench.html` into a run's folder, from the `bench.jsonl` there; returns its path."""
    lines = (folder / "bench.jsonl").read_text(encoding="utf-8").split("\n")
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name.startswith("eval/")]
    measured = [{name: row.get(name) for name in ("step", *names)} for row in rows]
    data = RunData(RunFolder(folder), sorted(measured, key=lambda row: row["step"] or 0), [], "")
    title, path = _title(data), folder / "bench.html"
    charts = make_charts(data)
    page = render_page("bench", title=title, rows=rows, names=names, charts=charts, clocks=clocks([data]))
    write_page(path, page)
    return path


def _title(data: RunData) -> str:
    path = data.folder.path.resolve()
    return f"{path.parent.name} / {path.name}"


def subject_of(data: RunData) -> str:
    """Sentence on what was trained, how, and on which data; empty without a run file."""
    run = data.configuration()
    model, lora = run.get("model", {}).get("path"), run.get("model", {}).get("lora")
    if model is None:
        return ""
    algorithm = str(run.get("algorithm", {}).get("type", "grpo")).upper()
    part = f"LoRA adapter of rank {lora.get('rank')} on" if lora else "all weights of"
    train = run.get("data", {}).get("train") or {}
    paths = [_data_path(each) for each in (train if isinstance(train, list) else [train])]
    return _ENVIRONMENT.sub(r"$\1", f"{algorithm}, {part} {model}, on {', '.join(paths)}.")


def _data_path(dataset: Any) -> str:
    """Path of a dataset, which is a section or a path; several are joined."""
    path = (dataset.get("path") or "") if isinstance(dataset, dict) else dataset
    return path if isinstance(path, str) else ", ".join(map(str, path))


def headline_values(data: RunData, status: RunStatus) -> list[HeadlineValue]:
    """The key figures of a run: last values of its rewards or losses, steps, time and speed."""
    figures = [
        _metric_value(data, name, title)
        for pattern, title in _HEADLINE_METRICS
        for name in data.names()
        if fnmatchcase(name, pattern) and data.series(name)[0]
    ]
    figures.append(HeadlineValue("Steps", format_number(status.step), f"of {status.steps:,}"))
    seconds = sum(sum(data.series(f"time/{part}_seconds")[1]) for part in ("step", "evaluate"))
    figures.append(HeadlineValue("Time", format_duration(seconds), "sampling, training and evaluation"))
    sampled, trained = (sum(data.series(f"{kind}_tokens")[1]) for kind in ("sampled", "trained"))
    speed = data.series("tokens_per_second")[1]
    if speed:
        middle = sorted(speed)[len(speed) // 2]
        label = "Trained tokens" if trained else "Sampled tokens"
        figures.append(
            HeadlineValue(
                label, format_number(trained or sampled), f"median of {format_number(middle)} per second"
            )
        )
    return figures


def _metric_value(data: RunData, name: str, title: str) -> HeadlineValue:
    """Return the last value of a metric, with its first value and the standard error of the difference."""
    values = data.series(name)[1]
    if name.startswith("eval/"):
        title = f"{title}, {name.removeprefix('eval/').split('/')[0]}"
    if len(values) < 2:
        return HeadlineValue(title, format_number(values[-1]), "measured once")
    change = _evaluated(data, name) or series_change(values)
    note, good = f"from {format_number(values[0])}", None
    if change is not None and change.standard_error is not None:
        note += f" (standard error {format_number(change.standard_error)})"
        if change.is_significant:
            good = (change.difference > 0) == (metric_of(name).better == "higher")
    return HeadlineValue(title, format_number(values[-1]), note, good)


def _evaluated(data: RunData, name: str) -> MeanChange | None:
    """The change of an eval taskset's reward, from the rollouts of its first and last evaluation."""
    files = data.eval_files().get(name.removeprefix("eval/").removesuffix("/reward"), [])
    return evaluation_change(files[0], files[-1]) if len(files) > 1 else None


def _last_values(data: RunData) -> list[tuple[str, str, str, str]]:
    """List the last value of every metric, with unit and definition."""
    table = []
    for name in data.names():
        values = data.series(name)[1]
        if not values:
            continue
        try:
            metric = metric_of(name)
        except KeyError:
            table.append((name, format_number(values[-1]), "", "Not defined in this version of Strop."))
        else:
            table.append((name, format_number(values[-1]), metric.unit, metric.definition))
    return table


_BINS = 16
_CALIBRATION_BINS = 10
"""Bins of the confidence between 1/2 and 1, as of the metric `calibration_error`."""


@dataclass(frozen=True, slots=True)
class ScoreBin:
    """Rows whose score is between two edges."""

    edge: str
    """Lower edge."""
    counts: Sequence[int]
    """Number of rows of each kind."""
    percents: Sequence[float]
    """Lengths of the bars, in percent of the longest one."""


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Rows on whose outcome the model is about equally confident."""

    confidence: str
    """Mean probability of the more probable outcome."""
    accuracy: str
    """Fraction of rows with that outcome."""
    rows: int
    percents: tuple[float, float]
    """Confidence and accuracy, in percent."""


@dataclass(frozen=True, slots=True)
class ScoreSection:
    """Scores of one eval taskset."""

    title: str
    kinds: Sequence[str]
    bins: Sequence[ScoreBin]
    calibration: Sequence[CalibrationBin]
    """Empty for responses with a score."""


def read_score_sections(folder: RunFolder) -> list[ScoreSection]:
    """The section of each eval taskset of a reward model. Raises `RunFolderError` for a damaged file."""
    return [_section(each) for each in read_held_out_scores(folder.held_out_scores)]


def _section(found: HeldOutScores) -> ScoreSection:
    """The section of a taskset; a model that has diverged has scores that are in no bin."""
    finite = {
        kind: [score for score in scores if math.isfinite(score)] for kind, scores in found.scores.items()
    }
    others = sum(map(len, found.scores.values())) - sum(map(len, finite.values()))
    return ScoreSection(
        title=f"{found.taskset}, step {found.step}{f', without {others} that are NaN or infinite' if others else ''}",
        kinds=list(finite),
        bins=score_bins(finite),
        calibration=calibration_bins([each for each in found.probabilities if math.isfinite(each)]),
    )


def score_bins(found: Mapping[str, Sequence[float]]) -> list[ScoreBin]:
    """Bins of equal width from the least to the greatest score of all kinds; none without scores."""
    values = [value for scores in found.values() for value in scores]
    if not values:
        return []
    low, high = min(values), max(values)
    width = (high - low) / _BINS or 1.0
    counts = [[0] * len(found) for _ in range(_BINS)]
    for kind, scores in enumerate(found.values()):
        for value in scores:
            counts[min(_BINS - 1, int((value - low) / width))][kind] += 1
    largest = max(map(max, counts))
    return [
        ScoreBin(format_number(low + number * width), each, [100 * count / largest for count in each])
        for number, each in enumerate(counts)
    ]


def calibration_bins(probabilities: Sequence[float]) -> list[CalibrationBin]:
    """The bins that have rows, from the probability of what is true (Guo et al., arXiv 1706.04599)."""
    bins: dict[int, list[float]] = {}
    for probability in probabilities:
        confidence = max(probability, 1 - probability)
        number = min(_CALIBRATION_BINS - 1, int((confidence - 0.5) * 2 * _CALIBRATION_BINS))
        bins.setdefault(number, []).append(probability)
    found = []
    for _, rows in sorted(bins.items()):
        confidence = sum(max(each, 1 - each) for each in rows) / len(rows)
        accuracy = sum(each > 0.5 for each in rows) / len(rows)
        found.append(
            CalibrationBin(
                f"{confidence:.3f}", f"{accuracy:.3f}", len(rows), (100 * confidence, 100 * accuracy)
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class HistogramBar:
    """One bin of a histogram."""

    edge: str
    """Lower edge."""
    count: int
    percent: float
    """Length of the bar, in percent of the longest one."""


@dataclass(frozen=True, slots=True)
class ScoreHistogram:
    """Scores that one operator gave to its rows."""

    title: str
    bars: Sequence[HistogramBar]


@dataclass(frozen=True, slots=True)
class TaskSection:
    """Effect of a run's pipeline on the rows of its training taskset."""

    rows_in: int
    rows_out: int
    operators: Table
    """Rows of the table of operators, with the heading first."""
    histograms: Sequence[ScoreHistogram]


def read_task_section(folder: RunFolder) -> TaskSection | None:
    """The section of a run; None for a run without a task pipeline. Raises `RunFolderError` for a damaged file."""
    file = folder.task_pipeline
    if not file.exists():
        return None
    try:
        manifest = read_object(file)["manifest"]
        return TaskSection(
            rows_in=manifest["rows_in"],
            rows_out=manifest["rows_out"],
            operators=operator_table(manifest),
            histograms=[ScoreHistogram(title, _bars(found)) for title, found in score_histograms(manifest)],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}. Delete it; the report is then written without the task pipeline."
        ) from None


def _bars(histogram: Mapping[str, Any]) -> list[HistogramBar]:
    counts: Sequence[int] = histogram["counts"]
    largest = max(counts)
    return [
        HistogramBar(format_number(edge), count, 100 * count / largest)
        for edge, count in zip(histogram["edges"], counts, strict=False)
    ]


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
