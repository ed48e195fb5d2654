"""`report.html`: one self-contained page of a run, made from the files in its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from strop.report.charts import make_charts
from strop.report.contents import Contents, read_contents
from strop.report.samples import choose_samples
from strop.run.folder import RunFolder
from strop.run.metrics import metric_of
from strop.run.records.wording import duration, number

_COURSES = (
    ("eval/*/reward", "Held-out reward"),
    ("eval/*/loss", "Held-out loss"),
    ("eval/*/dpo/accuracy", "Held-out preferences met"),
    ("reward/mean", "Training reward"),
    ("sft_loss", "Training loss"),
    ("dpo/margin", "Training margin"),
)
"""What a run is about: names, or patterns of names, with what they are called in the headline."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the headline."""

    label: str
    value: str
    note: str
    good: bool | None = None
    """Whether it went the good way; None where that cannot be said."""


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run's folder, finished or not; returns its path.

    Raises `RunFolderError` where the folder is no run's.
    """
    contents = read_contents(folder)
    page = _template("report").render(
        title=_title(contents),
        ending=_ending(contents),
        message=contents.sessions[-1]["message"] if contents.sessions else None,
        headline=_headline(contents),
        charts=make_charts(contents),
        samples=choose_samples(contents),
        sessions=contents.sessions,
        set_aside=contents.sessions[-1]["set_aside"] if contents.sessions else [],
        run_file=contents.run_file,
        last=_last_values(contents),
        rows=len(contents.rows),
    )
    path = contents.folder.report
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(page, encoding="utf-8")
    beside.replace(path)
    return path


def write_bench(folder: Path) -> Path:
    """Write `bench.html` into a run's folder, from the `bench.jsonl` there; returns its path."""
    lines = (folder / "bench.jsonl").read_text(encoding="utf-8").splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name.startswith("eval/")]
    measured = [{name: row.get(name) for name in ("step", *names)} for row in rows]
    contents = Contents(RunFolder(folder), sorted(measured, key=lambda row: row["step"] or 0), [], "")
    title, path = _title(contents), folder / "bench.html"
    page = _template("bench").render(title=title, rows=rows, names=names, charts=make_charts(contents))
    path.write_text(page, encoding="utf-8")
    return path


def _template(name: str) -> Any:
    environment = Environment(
        loader=PackageLoader("strop.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "day": _day}
    return environment.get_template(f"{name}.html.j2")


def _title(contents: Contents) -> str:
    path = contents.folder.path.resolve()
    return f"{path.parent.name} / {path.name}"


def _ending(contents: Contents) -> str:
    """How the run ended, or where it stands: one word or two."""
    if not contents.sessions:
        return "unknown"
    return contents.sessions[-1]["outcome"] or "not ended"


def _headline(contents: Contents) -> list[Figure]:
    figures = [
        _course(contents, name, title)
        for pattern, title in _COURSES
        for name in contents.names()
        if fnmatchcase(name, pattern) and contents.series(name)[0]
    ]
    steps = max((int(row["step"] or 0) for row in contents.rows), default=0)
    planned = contents.sessions[-1]["steps"] if contents.sessions else steps
    figures.append(Figure("Steps", number(steps), f"of {planned:,}"))
    seconds = sum(sum(contents.series(f"time/{part}_seconds")[1]) for part in ("step", "evaluate"))
    figures.append(Figure("Time", duration(seconds), "sampling, training, evaluating"))
    sampled, trained = (sum(contents.series(f"{kind}_tokens")[1]) for kind in ("sampled", "trained"))
    speed = contents.series("tokens_per_second")[1]
    if speed:
        middle = sorted(speed)[len(speed) // 2]
        label = "Trained tokens" if trained else "Sampled tokens"
        figures.append(Figure(label, number(trained or sampled), f"{number(middle)} a second, median"))
    return figures


def _course(contents: Contents, name: str, title: str) -> Figure:
    """The last value of a metric, and where it came from."""
    values = contents.series(name)[1]
    if name.startswith("eval/"):
        title = f"{title}, {name.removeprefix('eval/').split('/')[0]}"
    change = values[-1] - values[0]
    if len(values) < 2:
        return Figure(title, number(values[-1]), "measured once")
    rose = metric_of(name).better == "higher"
    good = None if change == 0 else (change > 0) == rose
    return Figure(title, number(values[-1]), f"from {number(values[0])}", good)


def _last_values(contents: Contents) -> list[tuple[str, str, str, str]]:
    """Every metric's last value, with unit and definition."""
    table = []
    for name in contents.names():
        values = contents.series(name)[1]
        if not values:
            continue
        try:
            metric = metric_of(name)
        except KeyError:
            table.append((name, number(values[-1]), "", "Not defined in this version of Strop."))
        else:
            table.append((name, number(values[-1]), metric.unit, metric.definition))
    return table


def _day(stamp: str) -> str:
    """An ISO time as `21 Nov 2026, 14:03 UTC`."""
    return f"{datetime.fromisoformat(stamp):%-d %b %Y, %H:%M} UTC"
