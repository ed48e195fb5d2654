"""Buttons of a run besides stop and resume: notes, archive, trash, report, evaluation, export."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from strop.errors import RunFolderError
from strop.report.build import write_report
from strop.runs.folder import RunFolder
from strop.studio.pages.run_view import state_of
from strop.studio.processes import start_process
from strop.studio.rendering import url
from strop.studio.requests import folder_named, json_action, name_of, run_path, settings_of, text_in
from strop.studio.run_notes import TRASH, RunNotes, move_to_trash, read_notes, write_notes


def note(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Keep the tags, which commas separate, and the note of a run."""
    path = folder_named(request, text_in(values, "run"))
    tags = dict.fromkeys(tag.strip() for tag in text_in(values, "tags").split(",") if tag.strip())
    before = read_notes(path)
    write_notes(path, RunNotes(tuple(tags), text_in(values, "note").strip(), before.is_archived))
    return {"message": "The notes are in the run's folder."}


def archive(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Take a run out of the list, or put it back."""
    path = folder_named(request, text_in(values, "run"))
    notes = read_notes(path)
    write_notes(path, replace(notes, is_archived=not notes.is_archived))
    return {"location": url("/runs")}


def delete(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Move a run that is not running into the trash, once the person has confirmed it."""
    path = folder_named(request, text_in(values, "run"))
    if state_of(request, path) in ("running", "starting"):
        raise RunFolderError("The run is running. Stop it first.")
    root = settings_of(request).runs
    if values.get("confirmed") is not True:
        return {"question": f"Move {path} to {root / TRASH}? Nothing is erased: move it back to undo."}
    move_to_trash(path, root)
    return {"location": url("/runs")}


def report(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Write the report of a run, and offer it for download."""
    path = folder_named(request, text_in(values, "run"))
    write_report(path)
    return {"location": url("/run/report", run=name_of(request, path))}


def report_file(request: Request) -> Response:
    """The report of a run, as a file to save: its script does not run on Studio's pages."""
    path = run_path(request)
    file = RunFolder(path).report
    if not file.is_file():
        raise RunFolderError(f"{path} has no report.html yet.")
    return FileResponse(file, filename=f"{path.resolve().name}.html", media_type="text/html")


def evaluate(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Evaluate the last checkpoint in a process of its own, whose output is a log of the run."""
    path = folder_named(request, text_in(values, "run"))
    return _start(request, values, "evaluate", ["evaluate", str(path)])


def export(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Export the last checkpoint into the folder `export` of the run, in a process of its own."""
    path = folder_named(request, text_in(values, "run"))
    return _start(request, values, "export", ["export", str(path), "--to", str(path / "export")])


def _start(request: Request, values: dict[str, Any], job: str, arguments: list[str]) -> dict[str, Any]:
    path = folder_named(request, text_in(values, "run"))
    if values.get("confirmed") is not True:
        return {
            "question": f"Run `strop {shlex.join(arguments)}`? It loads the model, and the code that the run's files "
            "name."
        }
    start_process(arguments, path, job=job)
    return {"location": url("/run/logs", run=name_of(request, path))}


ROUTES = [
    Route("/run/report", report_file),
    *(
        Route(f"/run/{action.__name__}", json_action(action), methods=["POST"])
        for action in (note, archive, delete, evaluate, export)
    ),
    Route("/run/write-report", json_action(report), methods=["POST"]),
]
