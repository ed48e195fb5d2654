"""Pages of one run: curves, configuration, logs; and its stop and resume."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strop.config.redact import safe_text
from strop.errors import RunFolderError
from strop.report.build import headline_values, subject_of
from strop.report.charts import clocks, make_charts
from strop.runs.folder import RunFolder
from strop.runs.lock import request_stop, resume_arguments
from strop.runs.overview import RunStatus, run_state, run_status
from strop.runs.reader import RunData
from strop.runs.verdict import learning_faults, verdict
from strop.studio.processes import log_files, read_end, start_process, started_process
from strop.studio.rendering import html, url
from strop.studio.requests import cache_of, folder_named, json_action, name_of, run_path
from strop.studio.run_cache import folder_version
from strop.studio.run_notes import read_notes

_ETA_STEPS = 20
"""Steps whose mean time gives the remaining time."""


def page(request: Request) -> Response:
    """Curves and key figures of a run; one that has just been started has only its log."""
    path = run_path(request)
    return html("run", **common_values(request, path, "curves") | _curves(request, path))


def curves(request: Request) -> Response:
    """The part of the page that changes with every step; 204 if nothing has changed since `version`."""
    path = run_path(request)
    values = _curves(request, path)
    if request.query_params.get("version") == values["version"]:
        return Response(status_code=204)
    return html("run_curves", name=name_of(request, path), **values)


def configuration(request: Request) -> Response:
    """The resolved run file, and the sessions of the run."""
    path = run_path(request)
    data = cache_of(request).read(path)
    return html(
        "run_configuration",
        **common_values(request, path, "configuration"),
        run_file=data.run_file,
        sessions=data.sessions,
    )


def logs(request: Request) -> Response:
    """Console output of the run's processes."""
    path = run_path(request)
    return html("run_logs", **common_values(request, path, "logs") | _log(request, path))


def log_text(request: Request) -> Response:
    """The end of one log, for the page's updates."""
    return html("run_log_text", **_log(request, run_path(request)))


def stop(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Ask a run to save its state and stop."""
    path = folder_named(request, str(values.get("run", "")))
    started = started_process(path)
    try:
        request_stop(RunFolder(path))
    except RunFolderError:
        if started is None or not started.terminate():  # a run that loads its model holds no lock yet
            raise
    return {"message": "The run saves its state and stops after the update that it computes."}


def resume(request: Request, values: dict[str, Any]) -> dict[str, Any]:
    """Continue a run that was stopped: repeat the command that Studio started, with the values of `change`, if any.

    The folder of a run that Studio did not start may come from anyone, and its run.yaml names code. The answer is then
    the command as a question, and the request is repeated with `confirmed`.
    """
    path = folder_named(request, str(values.get("run", "")))
    started = started_process(path)
    changes = [f"--change={change}" for change in str(values.get("change") or "").split()]
    if started is not None:
        start_process([*started.arguments, *changes], path, cwd=started.cwd)
        return {"location": url("/run/logs", run=name_of(request, path))}
    arguments = [*resume_arguments(RunFolder(path)), *changes]
    if values.get("confirmed") is not True:
        return {
            "question": f"Studio did not start this run. Resume runs `strop {shlex.join(arguments)}` in {Path.cwd()}, "
            "with the code that this file names. Do so only if you trust the folder."
        }
    start_process(arguments, path)
    return {"location": url("/run/logs", run=name_of(request, path))}


def common_values(request: Request, path: Path, tab: str) -> dict[str, Any]:
    """Values that every page of a run has."""
    name = name_of(request, path)
    return {
        "title": path.resolve().name,
        "area": "runs",
        "tab": tab,
        "name": name,
        "state": state_of(request, path),
        "notes": read_notes(path),
    }


def state_of(request: Request, path: Path) -> str:
    """State of a run, including one that has not recorded anything yet."""
    started = started_process(path)
    is_alive = started is not None and started.is_running
    try:
        state = run_state(cache_of(request).read(path))
    except RunFolderError:
        return "starting" if is_alive else "not started"
    return "running" if is_alive and state != "running" else state


def _curves(request: Request, path: Path) -> dict[str, Any]:
    state = state_of(request, path)
    version = f"{state} {folder_version(path)}"
    try:
        data = cache_of(request).read(path)
    except RunFolderError:
        data = RunData(RunFolder(path), [], [], "")
    status = run_status(data)
    return {
        "state": state,
        "version": version,
        "step": status.step,
        "steps": status.steps,
        "message": status.message,
        "seconds_left": _seconds_left(data, status) if state == "running" else None,
        "subject": subject_of(data),
        "verdict": verdict(data),
        "faults": learning_faults(data.rows),
        "headline": headline_values(data, status) if data.rows else [],
        "charts": make_charts(data),
        "clocks": clocks([data]),
    }


def _seconds_left(data: RunData, status: RunStatus) -> float | None:
    """Remaining time, by the mean of the last steps; None before the first one."""
    seconds = data.series("time/step_seconds")[1][-_ETA_STEPS:]
    return sum(seconds) / len(seconds) * (status.steps - status.step) if seconds else None


def _log(request: Request, path: Path) -> dict[str, Any]:
    files = {str(file.relative_to(path)): file for file in log_files(path)}
    chosen = request.query_params.get("file") or next(iter(files), "")
    text = safe_text(read_end(files[chosen])) if chosen in files else ""
    return {"name": name_of(request, path), "files": list(files), "chosen": chosen, "text": text}


ROUTES = [
    Route("/run", page),
    Route("/run/curves", curves),
    Route("/run/configuration", configuration),
    Route("/run/logs", logs),
    Route("/run/log", log_text),
    Route("/run/stop", json_action(stop), methods=["POST"]),
    Route("/run/resume", json_action(resume), methods=["POST"]),
]
