"""Page with the list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strop.errors import RunFolderError
from strop.runs.overview import RunOverview, damaged_overview, find_runs, overview_of
from strop.studio.rendering import html
from strop.studio.requests import cache_of, name_of, settings_of

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


def page(request: Request) -> Response:
    """The page."""
    runs = _runs(request)
    return html("runs", title="Runs", area="runs", runs=runs, folder=settings_of(request).runs.resolve())


def table(request: Request) -> Response:
    """The table alone, for the page's updates."""
    return html("runs_table", runs=_runs(request))


def _runs(request: Request) -> list[ListedRun]:
    root = settings_of(request).runs
    runs = [_listed(request, path) for path in find_runs(root)] if root.is_dir() else []
    return sorted(runs, key=lambda run: (run.overview.status != "running", -run.overview.changed.timestamp()))


def _listed(request: Request, path: Path) -> ListedRun:
    try:
        data = cache_of(request).read(path)
    except RunFolderError:
        return ListedRun(name_of(request, path), damaged_overview(path), "")
    names = ("reward/mean", "sft_loss", "preference_loss")
    values = next((found for name in names if (found := data.series(name)[1])), [])
    return ListedRun(name_of(request, path), overview_of(data), small_curve(values))


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
