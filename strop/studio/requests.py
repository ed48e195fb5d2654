"""Values of requests: the runs and numbers that a page's URL names, and the JSON that its script sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from strop.config.paths import existing_path
from strop.errors import ConfigError, RunFolderError
from strop.studio.files import require_allowed
from strop.studio.processes import started_process
from strop.studio.run_cache import RunCache
from strop.studio.settings import StudioSettings
from strop.workers.json_text import parse_object


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
    """Folder of a run by its path relative to the folder of runs, or its own path.

    Raises `RunFolderError` where there is none, and `ConfigError` for one outside of Studio's folders that Studio did
    not start.
    """
    root = settings_of(request).runs
    for path in (root / name, Path(name)):
        if name and (found := existing_path(path)) is not None and found.is_dir():
            return path if started_process(path) else require_allowed(path, settings_of(request))
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


_BODY_SECONDS = 60.0
"""Timeout for the body of a request."""
_MAX_BODY_BYTES = 4 * 2**20
Answer = dict[str, Any] | Response


def json_action(
    work: Callable[[Request, dict[str, Any]], Answer],
) -> Callable[[Request], Awaitable[Response]]:
    """Endpoint that runs `work` on the JSON object of a POST request, in a thread."""

    async def endpoint(request: Request) -> Response:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await _body(request)
        except TimeoutError:
            return _error(f"The body of the request did not arrive within {_BODY_SECONDS:g} s.", 408)
        if body is None:
            return _error(f"The body of the request is larger than {_MAX_BODY_BYTES:,} bytes.", 413)
        values = _json_object(body)
        if values is None:
            return _error("The body of the request is not a JSON object of Unicode text; write one.", 400)
        answer = await run_in_threadpool(work, request, values)
        if isinstance(answer, Response):
            return answer
        # Escaped: half of a pair of surrogates, which YAML can write, has no bytes.
        return Response(json.dumps(answer), media_type="application/json")

    return endpoint


async def _body(request: Request) -> bytes | None:
    """The body of a request; None for one that is too large."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            return None
    return bytes(body)


def _error(message: str, status: int) -> Response:
    return JSONResponse({"error": message}, status, {"Connection": "close"} if status != 400 else None)


def text_in(values: dict[str, Any], key: str) -> str:
    """A text that a request must have. Raises `ConfigError`."""
    value = values.get(key)
    if not isinstance(value, str):
        raise ConfigError(f"The request has no text `{key}`; write one.")
    return value


def whole_in(values: dict[str, Any], key: str) -> int:
    """An integer that a request must have, also as a text. Raises `ConfigError`."""
    text = str(values.get(key))
    if not (text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 18):
        raise ConfigError(f"The request has no integer `{key}`; write one.")
    return int(text)


def _json_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object in a request's body, an empty one for an empty body; None if it is anything else, or has half
    of a pair of surrogates, which no file can have."""
    try:
        values = parse_object(body or b"{}")
        json.dumps(values, ensure_ascii=False).encode()
    except ValueError:
        return None
    return values
