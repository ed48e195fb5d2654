"""Page that compares runs: overlaid curves, settings that differ, last values, responses to the same tasks."""

from __future__ import annotations

from itertools import cycle

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strop.errors import RunFolderError
from strop.report.build import overlaid_charts
from strop.report.charts import COLORS, clocks
from strop.runs.comparison import compare_metrics, differing_settings, run_labels, shared_samples
from strop.studio.rendering import html
from strop.studio.requests import cache_of, folder_named

_SAMPLES = 4


def page(request: Request) -> Response:
    """The page for the runs of the query."""
    names = list(dict.fromkeys(request.query_params.getlist("run")))
    if len(names) < 2:
        raise RunFolderError("A comparison needs two or more runs: choose them in the list of runs.")
    runs = [cache_of(request).read(folder_named(request, name)) for name in names]
    labels = run_labels(runs)
    return html(
        "comparison",
        title=f"{len(runs)} runs",
        area="runs",
        names=names,
        labels=list(zip(labels, cycle(COLORS), strict=False)),
        charts=overlaid_charts(runs, labels),
        clocks=clocks(runs),
        metrics=compare_metrics(runs),
        settings=differing_settings(runs),
        samples=shared_samples(runs, labels, _SAMPLES),
    )


ROUTES = [Route("/compare", page)]
