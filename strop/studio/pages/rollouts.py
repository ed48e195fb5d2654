"""Page with a run's rollouts: a list with filters, groups with their best and worst response, and single groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from strop.config.paths import existing_path
from strop.report.page import make_thumbnails
from strop.runs.reader import RunData
from strop.runs.rollout_index import TRAINING, RolloutFilter, RolloutIndex, RolloutOrder
from strop.studio.conversation import (
    Coloring,
    ShownMessage,
    ShownToken,
    response_messages,
    shown_tokens,
)
from strop.studio.pages.run_view import common_values
from strop.studio.rendering import html, url
from strop.studio.requests import cache_of, number, run_path, whole

_PAGE = 10
"""Groups on one page, or rollouts whose tokens are colored."""
_LIST_PAGE = 40
"""Rollouts on one page of the list."""
_LINE = 160
"""Characters of a response in the list."""
_IMAGE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".webp": "image/webp"}
"""Media types of the images that a run stores, by their ending."""


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """A rollout with what the page shows of it."""

    row: Mapping[str, Any]
    messages: list[ShownMessage]
    tokens: list[ShownToken]

    @property
    def line(self) -> str:
        """Beginning of the response, or the fault, on one line."""
        text = self.row["error"] or self.row["text"] or ""
        return " ".join(text[: 4 * _LINE].split())[:_LINE] or "(empty)"


def page(request: Request) -> Response:
    """The list, or the groups with the largest difference between their rewards (`view=groups`)."""
    path = run_path(request)
    data, index = cache_of(request).read(path), cache_of(request).rollouts(path)
    by_group, coloring = request.query_params.get("view") == "groups", _coloring(request)
    size = _PAGE if by_group or coloring else _LIST_PAGE
    accepted, first = _filter(request, index), max((whole(request, "page") or 1) - 1, 0) * size
    pairs, shown, total, searched, has_more = [], [], None, None, False
    if by_group:
        found = index.spreads(accepted, first, _PAGE + 1)
        has_more = len(found) > _PAGE
        pairs = [(one, _best_and_worst(index, accepted.source, one.step, one.group)) for one in found[:_PAGE]]
    else:
        listed = index.find(accepted, first, size)
        shown, total, has_more = list(listed.rows), listed.total, listed.has_more
        searched = listed.searched if accepted.text else None
    rows = [*shown, *(row for _, both in pairs for row in both)]
    return html(
        "rollouts",
        **common_values(request, path, "rollouts"),
        view="groups" if by_group else "list",
        sources=index.sources,
        steps=index.steps(accepted.source),
        accepted=accepted,
        orders=get_args(RolloutOrder),
        coloring=coloring,
        has_tokens=any(row.get("token_ids") for row in rows),
        by_group=[
            [_shown(row, data, coloring) for row in same]
            for _, same in groupby(shown, key=lambda row: (row["step"], row["group"]))
        ],
        pairs=[(one, [_shown(row, data, coloring) for row in both]) for one, both in pairs],
        thumbnails=_thumbnails(data, rows),
        total=total,
        searched=searched,
        first=first,
        **_pages(request, first // size + 1, has_more),
    )


def group(request: Request) -> Response:
    """All rollouts of one group, the best first."""
    path = run_path(request)
    data, index = cache_of(request).read(path), cache_of(request).rollouts(path)
    step, name = whole(request, "step"), request.query_params.get("group", "")
    source = request.query_params.get("set") or TRAINING
    accepted = RolloutFilter(source, step, step, group=name, order="oldest")
    rows = sorted(index.find(accepted, 0, 256).rows, key=_reward, reverse=True)
    coloring = _coloring(request)
    return html(
        "rollout_group",
        **common_values(request, path, "rollouts"),
        source=source,
        step=step,
        group=name,
        coloring=coloring,
        has_tokens=any(row.get("token_ids") for row in rows),
        rollouts=[_shown(row, data, coloring) for row in rows],
        thumbnails=_thumbnails(data, rows),
    )


def image(request: Request) -> Response:
    """An image of a prompt."""
    folder = cache_of(request).read(run_path(request)).folder.images.resolve()
    found = existing_path(folder / request.path_params["name"])
    file = folder if found is None else found.resolve()
    kind = _IMAGE_TYPES.get(file.suffix)  # a page or a script of a foreign folder would be one of Studio's
    if file.parent != folder or kind is None or not file.is_file():
        return Response("There is no such image.", 404)
    return FileResponse(file, media_type=kind)


def _filter(request: Request, index: RolloutIndex) -> RolloutFilter:
    query = request.query_params
    source, order = query.get("set", ""), query.get("order", "")
    return RolloutFilter(
        source=source if source in index.sources else next(iter(index.sources), TRAINING),
        first_step=whole(request, "from"),
        last_step=whole(request, "to"),
        status=query.get("status") or None,
        min_reward=number(request, "min"),
        max_reward=number(request, "max"),
        text=query.get("text") or None,
        order=next((known for known in get_args(RolloutOrder) if known == order), "newest"),
    )


def _best_and_worst(index: RolloutIndex, source: str, step: int, name: str) -> list[Mapping[str, Any]]:
    rows = index.find(RolloutFilter(source, step, step, group=name, order="best"), 0, 4096).rows
    return [rows[0], rows[-1]] if len(rows) > 1 else list(rows)


def _shown(row: Mapping[str, Any], data: RunData, coloring: Coloring | None) -> ShownRollout:
    tokens = [] if coloring is None else shown_tokens(row, data, coloring)
    return ShownRollout(row, response_messages(row), tokens)


def _coloring(request: Request) -> Coloring | None:
    chosen = request.query_params.get("tokens")
    return next((known for known in get_args(Coloring) if known == chosen), None)


def _reward(row: Mapping[str, Any]) -> float:
    reward = row["reward"]
    return float("-inf") if reward is None else float(reward)


def _thumbnails(data: RunData, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return make_thumbnails(data.folder.images, (name for row in rows for name in row.get("images") or ()))


def _pages(request: Request, number_here: int, has_more: bool) -> dict[str, str | None]:
    """URLs of the pages before and after this one."""
    query = {name: value for name, value in request.query_params.items() if name != "page"}
    return {
        "before": url("/run/rollouts", **query, page=number_here - 1) if number_here > 1 else None,
        "after": url("/run/rollouts", **query, page=number_here + 1) if has_more else None,
    }


ROUTES = [
    Route("/run/rollouts", page),
    Route("/run/group", group),
    Route("/run/image/{name}", image),
]
