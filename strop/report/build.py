"""HTML reports: `report.html` of a run and `bench.html` of a benchmark, each one self-contained page."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from strop.report.charts import make_charts
from strop.report.page import render_page, write_page
from strop.report.plotting import clocks
from strop.report.score_section import read_score_sections
from strop.report.task_section import read_task_section
from strop.report.thumbnails import make_thumbnails
from strop.runs.folder import RunFolder
from strop.runs.formatting import format_duration, format_number
from strop.runs.metrics import metric_of
from strop.runs.reader import RunData, read_run
from strop.runs.samples import choose_samples
from strop.runs.status import RunStatus, run_status
from strop.runs.verdict import MeanChange, evaluation_change, learning_faults, series_change, verdict

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
