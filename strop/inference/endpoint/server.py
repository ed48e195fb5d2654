"""HTTP server of the chat endpoint: loopback only, with one API key per registration."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from strop.errors import MissingExtraError, PlacementError, StropError
from strop.inference.endpoint.errors import BadRequest
from strop.inference.endpoint.json_body import parse_json
from strop.inference.endpoint.request import parse_chat_request
from strop.inference.endpoint.response import ChatModel, completion_body, stream_chunks
from strop.inference.endpoint.token_completions import (
    TokenModel,
    parse_token_request,
    token_body,
)
from strop.workers.event_loop_thread import EventLoopThread

if TYPE_CHECKING:
    from aiohttp import web

    from strop.inference.endpoint.connections import ClientConnections

log = logging.getLogger("strop.endpoint")
_MAX_BODY_BYTES = 64 * 2**20
_BODY_SECONDS = 60.0
"""Timeout for the body of a request."""
_SEND_SECONDS = 60.0
"""Timeout for the client to receive a response."""
_SHUTDOWN_SECONDS = 5.0
"""Timeout for requests that are still answered at the end of the run."""


class EndpointModel(ChatModel, TokenModel, Protocol):
    """A model that serves both APIs."""


@dataclass(frozen=True, slots=True)
class EndpointAccess:
    """URL and API key of a registration."""

    url: str
    api_key: str
    models: tuple[str, ...]
    """Names of the models that this key may use."""


class EndpointServer:
    """Serves chat completions, completions of token ids and `/v1/models` on loopback, from the first `register` until
    `close`.

    Any thread may call.
    """

    def __init__(self, port: int = 0) -> None:
        """`port` 0 is any free port."""
        self._port = port
        self._thread = EventLoopThread("endpoint")
        self._models_by_key: dict[str, Mapping[str, EndpointModel]] = {}
        self._url = ""
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._connections: ClientConnections

    @contextmanager
    def register(self, models: Mapping[str, EndpointModel]) -> Iterator[EndpointAccess]:
        """Inside the block, a new API key gives access to these models by name; afterwards it is rejected.

        Raises `MissingExtraError` without aiohttp, `PlacementError` if the port is in use.
        """
        key = f"strop-{secrets.token_urlsafe(24)}"
        self._models_by_key[key] = models
        try:
            if not self._url:
                self._url = self._thread.run(self._start())
            yield EndpointAccess(self._url, key, tuple(models))
        finally:
            del self._models_by_key[key]

    def close(self) -> None:
        """Close all connections, and stop listening."""
        if self._runner is not None:
            self._thread.run(self._stop(self._runner))
        self._thread.close()

    async def _start(self) -> str:
        if self._url:  # another thread has started it
            return self._url
        web = _aiohttp()
        from strop.inference.endpoint.connections import ClientConnections

        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        assert runner.server is not None
        self._runner, self._connections = runner, ClientConnections(runner.server, self._models_by_key)
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                self._connections.make_protocol, "127.0.0.1", self._port
            )
        except OSError as error:
            raise PlacementError(
                f"rollout.endpoint.port: cannot listen on port {self._port} ({error.strerror}); set another, or "
                "0 for any free port."
            ) from error
        self._url = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}/v1"
        return self._url

    async def _stop(self, runner: web.AppRunner) -> None:
        if self._listening is not None:
            self._listening.close()
        await runner.cleanup()

    def _models_of(self, request: web.Request) -> Mapping[str, EndpointModel]:
        header = request.headers.get("Authorization", "").removeprefix("Bearer ")
        api_key = header.encode("utf-8", "surrogateescape")
        for key, models in tuple(self._models_by_key.items()):  # another thread may register
            if hmac.compare_digest(key.encode(), api_key):
                self._connections.authenticated(request.protocol)
                return models
        raise BadRequest(
            "the API key is wrong, or its rollout has ended; agents find it in OPENAI_API_KEY",
            status=401,
            code="invalid_api_key",
        )

    async def _models(self, request: web.Request) -> web.StreamResponse:
        try:
            names = self._models_of(request)
        except BadRequest as error:
            return _error_response(error)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "strop"} for name in names]
        return _json({"object": "list", "data": data})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            models = self._models_of(request)
            parsed = parse_chat_request(await _read_json(request))
            reply = await _find_model(models, parsed.model).chat(parsed)
        except BadRequest as error:
            return _error_response(error)
        except StropError as error:
            return _error_response(BadRequest(str(error)))
        if not parsed.stream:
            return await _send(request, _json(completion_body(parsed, reply)))
        response: web.StreamResponse = _aiohttp().StreamResponse(
            headers={"Content-Type": "text/event-stream"}
        )
        events = (json.dumps(chunk, ensure_ascii=False) for chunk in stream_chunks(parsed, reply))
        return await _send(
            request, response, (f"data: {event}\n\n".encode() for event in (*events, "[DONE]"))
        )

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            models = self._models_of(request)
            parsed = parse_token_request(await _read_json(request))
            response = await _find_model(models, parsed.model).complete(parsed)
        except BadRequest as error:
            return _error_response(error)
        except StropError as error:
            return _error_response(BadRequest(str(error)))
        return await _send(request, _json(token_body(parsed, response)))


def _find_model(models: Mapping[str, EndpointModel], name: str) -> EndpointModel:
    if name not in models:
        raise BadRequest(
            f"there is no model {name!r}; available: {', '.join(models)}. "
            "rollout.endpoint.model sets the name of the trained model",
            status=404,
            code="model_not_found",
        )
    return models[name]


async def _read_json(request: web.Request) -> Any:
    """The body; the client has `_BODY_SECONDS` to send it."""
    if request.transport is None:
        raise BadRequest("the connection was closed before the request was read", status=408)
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
        raise BadRequest("the charset of the request is not UTF-8")
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = await request.read()
    except TimeoutError as error:
        raise BadRequest(f"the request did not arrive within {_BODY_SECONDS:g} s", status=408) from error
    except _aiohttp().RequestPayloadError as error:
        raise BadRequest(f"the body of the request cannot be decoded: {error}") from error
    return parse_json(body, "the request")


async def _send(
    request: web.Request, response: web.StreamResponse, parts: Iterable[bytes] = ()
) -> web.StreamResponse:
    """Send a response; the connection is closed if the client does not receive it within `_SEND_SECONDS`."""
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await response.prepare(request)
            for part in parts:
                await response.write(part)
            await response.write_eof()
    except ConnectionError:
        log.debug("A client has closed its connection before the response.")
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return response


def _error_response(error: BadRequest) -> web.Response:
    kind = "authentication_error" if error.status == 401 else "invalid_request_error"
    content = {"message": str(error), "type": kind, "param": None, "code": error.code}
    response = _json({"error": content}, status=error.status)
    if error.status in (401, 408):
        response.force_close()
    return response


def _json(content: Any, status: int = 200) -> web.Response:
    response: web.Response = _aiohttp().json_response(content, status=status)
    return response


def _aiohttp() -> Any:
    try:
        from aiohttp import web
    except ImportError as error:
        raise MissingExtraError(
            "The chat endpoint for agents needs aiohttp. Install it: pip install 'strop[agents]'"
        ) from error
    return web
