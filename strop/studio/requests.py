"""Values of requests: the runs and numbers that a page's URL names, and the JSON that its script sends."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from strop.errors import RunFolderError
from strop.studio.run_cache import RunCache
from strop.studio.settings import StudioSettings


def settings_of(request: Request) -> StudioSettings:
    """Settings of the server."""
    settings: StudioSettings = request.app.state.settings
    return settings


def cache_of(request: Request) -> RunCache:
    """Cache of run folders."""
    cache: RunCache = request.app.state.cache
    return cache


def run_path(request: Request) -> Path:
    """Folder of the run that the parameter `run` names."""
    return folder_named(request, request.query_params.get("run", ""))


def folder_named(request: Request, name: str) -> Path:
    """Folder of a run by its path relative to the folder of runs, or its own path. Raises `RunFolderError`."""
    root = settings_of(request).runs
    for path in (root / name, Path(name)):
        if name and path.is_dir():
            return path
    raise RunFolderError(f"There is no run folder {name!r} in {root}.")


def name_of(request: Request, path: Path) -> str:
    """Name of a run in URLs: its path relative to the folder of runs, or its own path."""
    root = settings_of(request).runs.resolve()
    resolved = path.resolve()
    return str(resolved.relative_to(root)) if resolved.is_relative_to(root) else str(resolved)


def number(request: Request, name: str) -> float | None:
    """A number of the query; None if it is missing or is not one."""
    try:
        return float(request.query_params.get(name, ""))
    except ValueError:
        return None


def whole(request: Request, name: str) -> int | None:
    """An integer of the query; None if it is missing or is not one."""
    text = request.query_params.get(name, "")
    return int(text) if text.lstrip("-").isdigit() and len(text) < 18 else None


Answer = dict[str, Any] | Response


def json_action(
    work: Callable[[Request, dict[str, Any]], Answer],
) -> Callable[[Request], Awaitable[Response]]:
    """Endpoint that runs `work` on the JSON object of a POST request, in a thread."""

    async def endpoint(request: Request) -> Response:
        values = _json_object(await request.body())
        if values is None:
            return JSONResponse({"error": "The body of the request is not a JSON object; write one."}, 400)
        answer = await run_in_threadpool(work, request, values)
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    return endpoint


def _json_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object in a request's body, an empty one for an empty body; None if it is anything else."""
    try:
        values = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
