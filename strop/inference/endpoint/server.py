"""HTTP server of the OpenAI-compatible endpoint, inside runs and of `strop serve`: one API key per registration."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from strop.errors import MissingExtraError, PlacementError, StropError
from strop.inference.endpoint.completions import (
    CompletionModel,
    CompletionStream,
    completion_response_body,
    parse_completion_request,
)
from strop.inference.endpoint.metrics import CONTENT_TYPE, EndpointMetrics
from strop.inference.endpoint.request import BadRequest, parse_chat_request, parse_json
from strop.inference.endpoint.response import ChatModel, ChatStream, TextCallback, chat_response_body
from strop.workers.threads import EventLoopThread

if TYPE_CHECKING:
    from aiohttp import web

    from strop.inference.endpoint.connections import ClientConnections

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger("strop.endpoint")
_MAX_BODY_BYTES = 64 * 2**20
_BODY_SECONDS = 60.0
"""Timeout for the body of a request."""
_SEND_SECONDS = 60.0
"""Timeout for the client to receive a response."""
_SHUTDOWN_SECONDS = 5.0
"""Timeout for requests that are still answered at the end of the run."""


_BACKLOG = 1024
"""Maximum number of connections that wait to be accepted."""
_SERVED = "/v1/chat/completions, /v1/completions and /v1/models"


class EndpointModel(ChatModel, CompletionModel, Protocol):
    """A model that serves both APIs."""


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Address of an endpoint, and what its messages name."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 is any free port."""
    port_option: str = "rollout.endpoint.port"
    """Option that sets the port."""
    key_hint: str = "or its rollout has ended; agents find it in OPENAI_API_KEY"
    """End of the message about a wrong API key."""
    model_hint: str = "rollout.endpoint.model sets the name of the trained model"
    """End of the message about an unknown model."""
    max_unauthenticated: int = 256
    """Maximum number of connections without an API key yet, beyond those of the registered clients."""


@dataclass(frozen=True, slots=True)
class EndpointAccess:
    """URL and API key of a registration."""

    url: str
    api_key: str
    models: tuple[str, ...]
    """Names of the models that this key may use."""


class FurtherRoutes(Protocol):
    """Routes of another protocol."""

    def add_to(
        self,
        app: web.Application,
        authenticate: Callable[[web.Request], object],
        admit: Callable[[web.Request], object],
    ) -> None:
        """Add the routes; `authenticate` raises `BadRequest` for a request without a key, and `admit` is called for one
        that has a right of another kind."""
        ...


class EndpointServer:
    """Serves chat completions, text completions and `/v1/models`, from the first `register` until `close`; and
    `/health` without a key, and `/metrics`.

    Any thread may call.
    """

    def __init__(
        self, options: EndpointOptions = EndpointOptions(), further: FurtherRoutes | None = None
    ) -> None:
        """`further` adds routes of another protocol, under the same keys."""
        self._options = options
        self._further = further
        self._metrics = EndpointMetrics()
        self._thread = EventLoopThread("endpoint")
        self._models_by_key: dict[str, Mapping[str, EndpointModel]] = {}
        self._url = ""
        self._runner: web.AppRunner | None = None
        self._listening: asyncio.Server | None = None
        self._connections: ClientConnections

    @contextmanager
    def register(
        self, models: Mapping[str, EndpointModel], key: str | None = None
    ) -> Iterator[EndpointAccess]:
        """Inside the block, an API key gives access to these models by name; afterwards it is rejected. A `key` of None
        is a new one.

        Raises `MissingExtraError` without aiohttp, `PlacementError` if the port is in use.
        """
        key = f"strop-{secrets.token_urlsafe(24)}" if key is None else key
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
        aiohttp_web = _aiohttp()
        from strop.inference.endpoint.connections import ClientConnections

        async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answer(request, handler)

        app = aiohttp_web.Application(
            client_max_size=_MAX_BODY_BYTES, middlewares=[aiohttp_web.middleware(answer)]
        )
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics_page)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._model)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/embeddings", self._embeddings)
        if self._further is not None:
            self._further.add_to(
                app, self._models_of, lambda request: self._connections.authenticated(request.protocol)
            )
        runner = aiohttp_web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        assert runner.server is not None
        self._runner, self._connections = (
            runner,
            ClientConnections(runner.server, self._models_by_key, self._options.max_unauthenticated),
        )
        try:
            self._listening = await asyncio.get_running_loop().create_server(
                self._connections.make_protocol, self._options.host, self._options.port, backlog=_BACKLOG
            )
        except OSError as error:
            raise PlacementError(
                f"{self._options.port_option}: cannot listen on port {self._options.port} of {self._options.host} "
                f"({error.strerror}); set another, or 0 for any free port."
            ) from error
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        self._url = f"http://{host}:{self._listening.sockets[0].getsockname()[1]}/v1"
        return self._url

    async def _stop(self, runner: web.AppRunner) -> None:
        if self._listening is not None:
            self._listening.close()
        await runner.cleanup()

    def _models_of(self, request: web.Request) -> Mapping[str, EndpointModel]:
        header = request.headers.get("Authorization", "").removeprefix("Bearer ")
        header = header or request.headers.get("X-API-Key", "")
        api_key = header.encode("utf-8", "surrogateescape")
        for key, models in tuple(self._models_by_key.items()):  # another thread may register
            if hmac.compare_digest(key.encode(), api_key):
                self._connections.authenticated(request.protocol)
                return models
        raise BadRequest(
            f"the API key is wrong, {self._options.key_hint}",
            status=401,
            code="invalid_api_key",
        )

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The handler's response, or an error in OpenAI's format; counts both."""
        started, path, status = time.perf_counter(), _route(request), "cancelled"
        try:
            with self._metrics.running():
                try:
                    response = await handler(request)
                except BadRequest as error:
                    response = _error_response(error)
                except StropError as error:
                    response = _error_response(BadRequest(str(error)))
                except _aiohttp().HTTPException as error:  # of aiohttp's router
                    response = _error_response(
                        BadRequest(
                            f"{request.method} {request.path[:80]}: {error.reason}; this endpoint serves {_SERVED}",
                            status=error.status,
                        )
                    )
                except Exception:
                    log.exception("A request to %s failed.", path)
                    response = _error_response(BadRequest("internal error; the log has it", status=500))
            status = str(response.status)
            return response
        finally:
            self._metrics.count_request(path, status, time.perf_counter() - started)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return _json({"status": "ok"})

    async def _metrics_page(self, request: web.Request) -> web.StreamResponse:
        self._models_of(request)
        response: web.Response = _aiohttp().Response(
            text=self._metrics.exposition(), headers={"Content-Type": CONTENT_TYPE}
        )
        return response

    async def _models(self, request: web.Request) -> web.StreamResponse:
        return _json({"object": "list", "data": [_model_card(name) for name in self._models_of(request)]})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self._find_model(self._models_of(request), name)
        return _json(_model_card(name))

    async def _embeddings(self, request: web.Request) -> web.StreamResponse:
        self._models_of(request)
        raise BadRequest(
            f"embeddings are not served: the models here generate text. This endpoint serves {_SERVED}; ask a server "
            "of an embedding model"
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        models = self._models_of(request)
        asked = parse_chat_request(await _read_json(request))
        respond = partial(self._find_model(models, asked.model).chat, asked)
        if asked.stream:
            return await _send_events(request, self._events(ChatStream(asked), asked.model, respond))
        return await self._send_reply(request, asked.model, respond, partial(chat_response_body, asked))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        models = self._models_of(request)
        asked = parse_completion_request(await _read_json(request))
        respond = partial(self._find_model(models, asked.model).complete, asked)
        if asked.stream:
            return await _send_events(request, self._events(CompletionStream(asked), asked.model, respond))
        return await self._send_reply(request, asked.model, respond, partial(completion_response_body, asked))

    async def _send_reply(
        self,
        request: web.Request,
        name: str,
        respond: Callable[[], Awaitable[Any]],
        body: Callable[[Any], dict[str, Any]],
    ) -> web.StreamResponse:
        """Send the body of a complete response of the model `name`."""
        reply = await respond()
        self._metrics.count_tokens(name, prompt=reply.prompt_tokens, completion=reply.completion_tokens)
        return await _send(request, _json(body(reply)))

    async def _events(
        self, stream: ChatStream | CompletionStream, name: str, respond: Callable[[TextCallback], Any]
    ) -> AsyncGenerator[dict[str, Any]]:
        """Chunks of the response of the model `name`, as soon as the model has them."""
        loop = asyncio.get_running_loop()
        texts: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()

        def on_text(index: int, text: str) -> None:
            loop.call_soon_threadsafe(texts.put_nowait, (index, text))

        replying = asyncio.ensure_future(respond(on_text))
        replying.add_done_callback(lambda _: texts.put_nowait(None))
        try:
            while (part := await texts.get()) is not None:
                for chunk in stream.text(*part):
                    yield chunk
            reply = replying.result()
        finally:
            replying.cancel()
        self._metrics.count_tokens(name, prompt=reply.prompt_tokens, completion=reply.completion_tokens)
        for chunk in stream.rest(reply):
            yield chunk

    def _find_model(self, models: Mapping[str, EndpointModel], name: str) -> EndpointModel:
        if name not in models:
            raise BadRequest(
                f"there is no model {name!r}; available: {', '.join(models)}. {self._options.model_hint}",
                status=404,
                code="model_not_found",
            )
        return models[name]


def _route(request: web.Request) -> str:
    """Path of the request's route, of which there is a fixed number; `other` without one."""
    resource = request.match_info.route.resource
    return "other" if resource is None else resource.canonical


def _model_card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "strop"}


async def _read_json(request: web.Request) -> Any:
    if (request.charset or "utf-8").lower() not in ("utf-8", "utf8", "us-ascii"):
        raise BadRequest("the charset of the request is not UTF-8")
    return parse_json(await read_body(request), "the request")


async def read_body(request: web.Request) -> bytes:
    """The body; the client has `_BODY_SECONDS` to send it. Raises `BadRequest`."""
    if request.transport is None:
        raise BadRequest("the connection was closed before the request was read", status=408)
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await request.read()
    except _aiohttp().HTTPRequestEntityTooLarge as error:
        raise BadRequest(f"the request has more than {_MAX_BODY_BYTES} bytes", status=413) from error
    except TimeoutError as error:
        raise BadRequest(f"the request did not arrive within {_BODY_SECONDS:g} s", status=408) from error
    except _aiohttp().RequestPayloadError as error:
        raise BadRequest(f"the body of the request cannot be decoded: {error}") from error


async def _send(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send a response; the connection is closed if the client does not receive it within `_SEND_SECONDS`."""
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await response.prepare(request)
            await response.write_eof()
    except ConnectionError:
        log.debug("A client has closed its connection before the response.")
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    return response


async def _send_events(request: web.Request, chunks: AsyncGenerator[dict[str, Any]]) -> web.StreamResponse:
    """Send chunks as server-sent events. An error before the first one is raised, a later one is an event."""
    response: web.StreamResponse = _aiohttp().StreamResponse(headers={"Content-Type": "text/event-stream"})
    event: dict[str, Any] | None = await anext(chunks)
    try:
        async with asyncio.timeout(_SEND_SECONDS):
            await response.prepare(request)
        while event is not None:
            async with asyncio.timeout(_SEND_SECONDS):
                await response.write(f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode())
            try:
                event = await anext(chunks, None)
            except (BadRequest, StropError) as error:
                event = {
                    "error": {"message": str(error), "type": "server_error", "param": None, "code": None}
                }
        async with asyncio.timeout(_SEND_SECONDS):
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
    except ConnectionError:
        log.debug("A client has closed its connection before the end of its response.")
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
    finally:
        await chunks.aclose()
    return response


def _error_response(error: BadRequest) -> web.Response:
    kind = "authentication_error" if error.status == 401 else "invalid_request_error"
    if error.status >= 500:
        kind = "server_error"
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
