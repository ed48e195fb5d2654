"""`report.html`: one self-contained page of a run, made from the files in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from strop.report.charts import make_charts
from strop.report.contents import Contents, read_contents
from strop.report.samples import choose_samples
from strop.run.metrics import metric_of
from strop.run.wording import duration, number


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
    page = _template().render(
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


def _template() -> Any:
    environment = Environment(
        loader=PackageLoader("strop.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "day": _day}
    return environment.get_template("report.html.j2")


def _title(contents: Contents) -> str:
    path = contents.folder.path.resolve()
    return f"{path.parent.name} / {path.name}"


def _ending(contents: Contents) -> str:
    """How the run ended, or where it stands: one word or two."""
    if not contents.sessions:
        return "unknown"
    return contents.sessions[-1]["outcome"] or "not ended"


def _headline(contents: Contents) -> list[Figure]:
    figures = [_course(contents, name) for name in contents.names() if _is_held_out(name)]
    if contents.series("reward/mean")[0]:
        figures.append(_course(contents, "reward/mean"))
    steps = max((int(row["step"] or 0) for row in contents.rows), default=0)
    planned = contents.sessions[-1]["steps"] if contents.sessions else steps
    figures.append(Figure("Steps", number(steps), f"of {planned:,}"))
    seconds = sum(sum(contents.series(f"time/{part}_seconds")[1]) for part in ("step", "evaluate"))
    figures.append(Figure("Time", duration(seconds), "sampling, training, evaluating"))
    tokens = sum(contents.series("sampled_tokens")[1])
    speed = contents.series("tokens_per_second")[1]
    if speed:
        middle = sorted(speed)[len(speed) // 2]
        figures.append(Figure("Sampled tokens", number(tokens), f"{number(middle)} a second, median"))
    return figures


def _is_held_out(name: str) -> bool:
    return name.startswith("eval/") and name.endswith("/reward")


def _course(contents: Contents, name: str) -> Figure:
    """The last value of a metric, and where it came from."""
    values = contents.series(name)[1]
    label = name.removeprefix("eval/").removesuffix("/reward") if _is_held_out(name) else ""
    title = f"Held-out reward, {label}" if label else "Training reward"
    change = values[-1] - values[0]
    if len(values) < 2:
        return Figure(title, number(values[-1]), "measured once")
    return Figure(title, number(values[-1]), f"from {number(values[0])}", None if change == 0 else change > 0)


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
