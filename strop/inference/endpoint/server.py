"""HTTP server of the chat endpoint: loopback only, with one API key per registration."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strop.errors import MissingExtraError, PlacementError, StropError
from strop.inference.endpoint.request import BadRequest, parse_chat_request
from strop.inference.endpoint.response import ChatModel, completion_body, stream_chunks
from strop.workers.event_loop_thread import EventLoopThread

if TYPE_CHECKING:
    from aiohttp import web

_MAX_BODY_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class EndpointAccess:
    """URL and API key of a registration."""

    url: str
    api_key: str
    models: tuple[str, ...]
    """Names of the models that this key may use."""


class EndpointServer:
    """Serves `/v1/chat/completions` and `/v1/models` on loopback, from the first `register` until `close`.

    Any thread may call.
    """

    def __init__(self, port: int = 0) -> None:
        """`port` 0 is any free port."""
        self._port = port
        self._thread = EventLoopThread("endpoint")
        self._models_by_key: dict[str, Mapping[str, ChatModel]] = {}
        self._url = ""
        self._runner: web.AppRunner | None = None

    @contextmanager
    def register(self, models: Mapping[str, ChatModel]) -> Iterator[EndpointAccess]:
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
            self._thread.run(self._runner.cleanup())
        self._thread.close()

    async def _start(self) -> str:
        if self._url:  # another thread has started it
            return self._url
        web = _aiohttp()
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
        except OSError as error:
            raise PlacementError(
                f"rollout.endpoint.port: cannot listen on port {self._port} ({error.strerror}); set another, or "
                "0 for any free port."
            ) from error
        self._runner = runner
        self._url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return self._url

    def _models_of(self, request: web.Request) -> Mapping[str, ChatModel]:
        api_key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        for key, models in self._models_by_key.items():
            if hmac.compare_digest(key.encode(), api_key.encode()):
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
            parsed = parse_chat_request(await _body(request))
            if parsed.model not in models:
                raise BadRequest(
                    f"there is no model {parsed.model!r}; available: {', '.join(models)}. "
                    "rollout.endpoint.model sets the name of the trained model",
                    status=404,
                    code="model_not_found",
                )
            reply = await models[parsed.model].chat(parsed)
        except BadRequest as error:
            return _error_response(error)
        except StropError as error:
            return _error_response(BadRequest(str(error)))
        if not parsed.stream:
            return _json(completion_body(parsed, reply))
        response: web.StreamResponse = _aiohttp().StreamResponse(
            headers={"Content-Type": "text/event-stream"}
        )
        await response.prepare(request)
        for chunk in stream_chunks(parsed, reply):
            await response.write(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _body(request: web.Request) -> Any:
    try:
        return await request.json()
    except ValueError as error:
        raise BadRequest(f"the request is not JSON: {error}") from error


def _error_response(error: BadRequest) -> web.Response:
    kind = "authentication_error" if error.status == 401 else "invalid_request_error"
    content = {"message": str(error), "type": kind, "param": None, "code": error.code}
    return _json({"error": content}, status=error.status)


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
