"""Page on which a person chooses the better of two responses to the same task, or answers the questions of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from strop.errors import RunFolderError
from strop.pipelines.human_feedback import AnnotationQueue
from strop.report.page import make_thumbnails
from strop.runs.folder import RunFolder
from strop.runs.overview import find_runs
from strop.runs.rollout_index import TRAINING, RolloutFilter
from strop.studio.conversation import response_messages
from strop.studio.pages.rollouts import ShownRollout
from strop.studio.preferences import (
    add_preference,
    draw_pair,
    preference_file,
    read_preferences,
    remove_preference,
)
from strop.studio.rendering import html
from strop.studio.requests import (
    cache_of,
    folder_named,
    json_action,
    name_of,
    run_path,
    settings_of,
    text_in,
    whole,
    whole_in,
)

_FILE = "preferences.jsonl"
QUESTIONS = "questions"
"""Name of the set of questions that a run's `human_feedback` asks, next to its sets of rollouts."""


def page(request: Request) -> Response:
    """The page, for the run of the query or the choice of one."""
    root = settings_of(request).runs
    names = [name_of(request, path) for path in find_runs(root)] if root.is_dir() else []
    values: dict[str, Any] = {"names": names, "name": "", "sources": [], "source": "", "file": _FILE}
    if request.query_params.get("run"):
        path = run_path(request)
        sources = list(cache_of(request).rollouts(path).sources)
        if RunFolder(path).annotations.is_dir():
            sources = [QUESTIONS, *sources]
        source = request.query_params.get("set", "")
        values |= {
            "name": (name := name_of(request, path)),
            "names": names if name in names else [name, *names],
            "sources": sources,
            "source": source if source in sources else next(iter(sources), TRAINING),
            "file": str(preference_file(request.query_params.get("file") or _FILE, settings_of(request))),
        }
    return html("rate", title="Rate", area="rate", **values, **_pair(request, values))


def pair(request: Request) -> Response:
    """The next pair, for the page's script."""
    name = name_of(request, run_path(request))
    file = str(preference_file(request.query_params.get("file") or _FILE, settings_of(request)))
    values = {"name": name, "source": request.query_params.get("set") or TRAINING, "file": file}
    part = "rate_question" if values["source"] == QUESTIONS else "rate_pair"
    return html(part, **values, **_pair(request, values))


def questions(request: Request) -> Response:
    """The questions of a run that wait for an answer, as JSON."""
    return JSONResponse({"waiting": _queue(run_path(request)).waiting()})


def answer(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Answer a question of a run: with `scores`, with `chosen` and `rejected`, or with neither, which skips it."""
    queue = _queue(folder_named(request, str(values.get("run", ""))))
    scores = values.get("scores") or {}
    if "chosen" in values:
        scores = {str(values["chosen"]): 1, str(values.get("rejected")): 0}
    queue.answer(str(values.get("id", "")), scores)
    return {"waiting": len(queue.waiting())}


def _queue(path: Path) -> AnnotationQueue:
    return AnnotationQueue(RunFolder(path).annotations)


def choose(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Write which of two responses is better."""
    path = folder_named(request, text_in(values, "run"))
    data, index = cache_of(request).read(path), cache_of(request).rollouts(path)
    step, source = whole_in(values, "step"), text_in(values, "set")
    accepted = RolloutFilter(source, step, step, group=text_in(values, "group"), order="oldest")
    rows = {row["index"]: row for row in index.find(accepted, 0, 512).rows}
    if not {whole_in(values, "chosen"), whole_in(values, "rejected")} <= rows.keys():
        raise RunFolderError(
            "The rollouts of this pair are gone. The run may have been resumed; take another pair."
        )
    file = preference_file(text_in(values, "file"), settings_of(request))
    chosen, rejected = rows[whole_in(values, "chosen")], rows[whole_in(values, "rejected")]
    add_preference(file, data.folder, name_of(request, path), chosen, rejected)
    return {"rated": len(read_preferences(file))}


def undo(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Remove a choice, with the values that made it: other people may have chosen since."""
    file = preference_file(text_in(values, "file"), settings_of(request))
    run = name_of(request, folder_named(request, text_in(values, "run")))
    rollouts = whole_in(values, "chosen"), whole_in(values, "rejected")
    removed = remove_preference(file, run, whole_in(values, "step"), text_in(values, "group"), rollouts)
    message = (
        "Removed the last choice of this page." if removed else "That choice is not in the file any more."
    )
    return {"message": message, "rated": len(read_preferences(file))}


def _pair(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    if not values["name"]:
        return {"pair": None, "rated": 0, "shown": [], "thumbnails": {}}
    path = run_path(request)
    if values["source"] == QUESTIONS:
        return _question(path)
    file = preference_file(str(values["file"]), settings_of(request))
    data, rated = cache_of(request).read(path), read_preferences(file)
    seed = len(rated) * 1000 + (whole(request, "skipped") or 0)
    found = draw_pair(
        cache_of(request).rollouts(path), str(values["source"]), rated, name_of(request, path), seed
    )
    rows = [found.first, found.second] if found else []
    return {
        "pair": found,
        "rated": len(rated),
        "shown": [ShownRollout(row, response_messages(row), []) for row in rows],
        "thumbnails": make_thumbnails(data.folder.images, (rows[0].get("images") or ()) if rows else ()),
    }


def _question(path: Path) -> dict[str, Any]:
    """The first question that waits, in the form of a pair or a group of rollouts."""
    waiting = _queue(path).waiting()
    found = waiting[0] if waiting else None
    rows = [] if found is None else [{**response, "error": None} for response in found["responses"]]
    return {
        "pair": None,
        "question": found,
        "waiting": len(waiting),
        "shown": [ShownRollout(row, response_messages(row), []) for row in rows],
        "thumbnails": make_thumbnails(RunFolder(path).images, found["images"] if found else ()),
    }


ROUTES = [
    Route("/rate", page),
    Route("/rate/pair", pair),
    Route("/rate/questions", questions),
    Route("/rate/answer", json_action(answer), methods=["POST"]),
    Route("/rate/choose", json_action(choose), methods=["POST"]),
    Route("/rate/undo", json_action(undo), methods=["POST"]),
]
