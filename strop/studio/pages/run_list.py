"""Page with the list of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strop.errors import RunFolderError
from strop.runs.overview import RunOverview, damaged_overview, find_runs, overview_of
from strop.studio.rendering import html, url
from strop.studio.requests import cache_of, name_of, settings_of
from strop.studio.run_notes import RunNotes, read_notes

_WIDTH, _HEIGHT = 120, 28
"""Size of the small curve of a run."""
_POINTS = 60


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One row of the list."""

    name: str
    overview: RunOverview
    curve: str
    """Points of the reward's curve, as an SVG polyline has them; empty for fewer than two values."""
    notes: RunNotes


def _held_out(run: ListedRun) -> float:
    return max(run.overview.held_out.values(), default=-math.inf)


_ORDERS: dict[str, Callable[[ListedRun], Any]] = {
    "newest": lambda run: (run.overview.status != "running", -run.overview.changed.timestamp()),
    "name": lambda run: run.name,
    "reward": lambda run: -(-math.inf if run.overview.reward is None else run.overview.reward),
    "held-out": lambda run: -_held_out(run),
    "step": lambda run: -run.overview.step,
}
_STATUSES = ("running", "finished", "interrupted", "failed", "killed", "archived")


def page(request: Request) -> Response:
    """The page."""
    query = request.query_params
    values = {name: query.get(name, "") for name in ("find", "status", "sort")}
    return html(
        "runs",
        title="Runs",
        area="runs",
        runs=_runs(request),
        folder=settings_of(request).runs.resolve(),
        table=url("/runs/table", **values),
        orders=list(_ORDERS),
        statuses=_STATUSES,
        is_filtered=any(values.values()),
        **values,
    )


def table(request: Request) -> Response:
    """The table alone, for the page's updates."""
    return html("runs_table", runs=_runs(request), is_filtered=any(request.query_params.values()))


def _runs(request: Request) -> list[ListedRun]:
    root, query = settings_of(request).runs, request.query_params
    runs = [_listed(request, path) for path in find_runs(root)] if root.is_dir() else []
    words, status = query.get("find", "").lower().split(), query.get("status", "")
    shown = [
        run
        for run in runs
        if run.notes.is_archived == (status == "archived")
        and status in ("", "archived", run.overview.status)
        and all(word in f"{run.name} {' '.join(run.notes.tags)} {run.notes.note}".lower() for word in words)
    ]
    order = _ORDERS.get(query.get("sort", ""), _ORDERS["newest"])
    return sorted(shown, key=order)


def _listed(request: Request, path: Path) -> ListedRun:
    try:
        data = cache_of(request).read(path)
    except RunFolderError:
        return ListedRun(name_of(request, path), damaged_overview(path), "", read_notes(path))
    names = ("reward/mean", "sft_loss", "preference_loss")
    values = next((found for name in names if (found := data.series(name)[1])), [])
    return ListedRun(name_of(request, path), overview_of(data), small_curve(values), read_notes(path))


def small_curve(values: Sequence[float]) -> str:
    """Points of a curve without axes, from its own minimum to its own maximum."""
    if len(values) < 2:
        return ""
    size = max(1, -(-len(values) // _POINTS))
    means = [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
    if len(means) < 2:
        means = [values[0], values[-1]]
    low, span = min(means), (max(means) - min(means)) or 1.0
    step = _WIDTH / (len(means) - 1)
    return " ".join(
        f"{number * step:.1f},{2 + (_HEIGHT - 4) * (1 - (value - low) / span):.1f}"
        for number, value in enumerate(means)
    )


ROUTES = [Route("/runs", page), Route("/runs/table", table)]
