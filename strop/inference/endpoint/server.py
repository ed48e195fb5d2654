"""The server: loopback only, and every caller has a token of its own."""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strop.errors import MissingExtraError, PlacementError, StropError
from strop.inference.endpoint.reply import Answerer, chunks, whole
from strop.inference.endpoint.request import BadRequest, read_request
from strop.inference.loop_thread import LoopThread

if TYPE_CHECKING:
    from aiohttp import web

_LARGEST_BODY = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Access:
    """Where the endpoint is, and by which token its caller is known."""

    url: str
    key: str
    models: tuple[str, ...]
    """That answer to this token."""


class Endpoint:
    """`/v1/chat/completions` and `/v1/models` on loopback. It starts with the first `admit`; any thread may
    call, and `close` ends it."""

    def __init__(self, port: int = 0) -> None:
        """`port` 0 takes any that is free."""
        self._port = port
        self._thread = LoopThread("endpoint")
        self._guests: dict[str, Mapping[str, Answerer]] = {}
        self._url = ""
        self._runner: web.AppRunner | None = None

    @contextmanager
    def admit(self, models: Mapping[str, Answerer]) -> Iterator[Access]:
        """Inside, whoever has the token may ask these models by their names; afterwards it is refused.

        Raises `MissingExtraError` without aiohttp, `PlacementError` where the port is taken.
        """
        key = f"strop-{secrets.token_urlsafe(24)}"
        self._guests[key] = models
        try:
            if not self._url:
                self._url = self._thread.wait(self._start())
            yield Access(self._url, key, tuple(models))
        finally:
            del self._guests[key]

    def close(self) -> None:
        """Hang up, and listen no more."""
        if self._runner is not None:
            self._thread.wait(self._runner.cleanup())
        self._thread.close()

    async def _start(self) -> str:
        if self._url:  # another thread was quicker
            return self._url
        web = _aiohttp()
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
        except OSError as error:
            raise PlacementError(
                f"rollout.endpoint.port: {self._port} cannot be listened on ({error.strerror}); write "
                "another, or 0 for any that is free."
            ) from error
        self._runner = runner
        self._url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return self._url

    def _models_of(self, request: web.Request) -> Mapping[str, Answerer]:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        for key, models in self._guests.items():
            if hmac.compare_digest(key.encode(), given.encode()):
                return models
        raise BadRequest(
            "the token is wrong, or its rollout is over; it is in OPENAI_API_KEY",
            status=401,
            code="invalid_api_key",
        )

    async def _models(self, request: web.Request) -> web.StreamResponse:
        try:
            names = self._models_of(request)
        except BadRequest as error:
            return _refusal(error)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "strop"} for name in names]
        return _json({"object": "list", "data": data})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            models = self._models_of(request)
            asked = read_request(await _body(request))
            if asked.model not in models:
                raise BadRequest(
                    f"there is no model {asked.model!r} here; there are {', '.join(models)}. "
                    "rollout.endpoint.model says what the model that is trained is called",
                    status=404,
                    code="model_not_found",
                )
            reply = await models[asked.model].chat(asked)
        except BadRequest as error:
            return _refusal(error)
        except StropError as error:
            return _refusal(BadRequest(str(error)))
        if not asked.stream:
            return _json(whole(asked, reply))
        response: web.StreamResponse = _aiohttp().StreamResponse(
            headers={"Content-Type": "text/event-stream"}
        )
        await response.prepare(request)
        for chunk in chunks(asked, reply):
            await response.write(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _body(request: web.Request) -> Any:
    try:
        return await request.json()
    except ValueError as error:
        raise BadRequest(f"the request is not JSON: {error}") from error


def _refusal(error: BadRequest) -> web.Response:
    kind = "authentication_error" if error.status == 401 else "invalid_request_error"
    said = {"message": str(error), "type": kind, "param": None, "code": error.code}
    return _json({"error": said}, status=error.status)


def _json(content: Any, status: int = 200) -> web.Response:
    response: web.Response = _aiohttp().json_response(content, status=status)
    return response


def _aiohttp() -> Any:
    try:
        from aiohttp import web
    except ImportError as error:
        raise MissingExtraError(
            "The endpoint that agents talk to needs aiohttp. Install it: pip install 'strop[agents]'"
        ) from error
    return web
