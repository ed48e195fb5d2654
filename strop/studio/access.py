"""Access to Studio: a token in the first URL, kept in a cookie afterwards; requests of other sites are refused.

A cookie of 127.0.0.1 would be sent to every port of the machine. Studio's is bound to a path that is drawn at its
start, under which all pages are, and which a server at another port does not know.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from contextvars import ContextVar
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlencode, urlsplit

from markupsafe import escape
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strop.studio.settings import StudioSettings

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Names under which a browser on this machine, or at the other end of an SSH tunnel, reaches the server."""
MAX_REQUESTS = 64
"""Maximum number of requests that are answered at the same time."""
_COOKIE = "strop_studio"
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_REFUSED = "This page needs the token of the URL that `strop studio` printed. Open that URL."

base_path: ContextVar[str] = ContextVar("base_path", default="")
"""Path in front of the URLs of this request's page."""


class AccessMiddleware:
    """Answers only requests that name this machine and bring the token."""

    def __init__(self, app: ASGIApp, settings: StudioSettings, admitted: Callable[[Scope], None]) -> None:
        """`admitted` is called with the scope of each request that brings the token."""
        self._app = app
        self._settings = settings
        self._admitted = admitted
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, and add the headers that restrict the page to this server."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_restricted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refusal(Request(scope))
        if refused is not None:
            await refused(scope, receive, send_restricted)
            return
        self._admitted(scope)
        self._running += 1
        token = base_path.set(scope["root_path"])
        try:
            await self._app(scope, receive, send_restricted)
        finally:
            base_path.reset(token)
            self._running -= 1

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that is not admitted; of one that is, the base becomes its root path."""
        try:
            host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
            origin = urlsplit(request.headers.get("origin", "")).netloc
        except ValueError:
            return PlainTextResponse("The header Host or Origin is no address.", 400)
        if host not in {name.strip("[]") for name in LOCAL_HOSTS}:
            return PlainTextResponse("Studio answers only under 127.0.0.1 and localhost.", 421)
        given = request.query_params.get("token")
        if given is not None and request.method == "GET" and self._is_token(given):
            self._admitted(request.scope)
            return self._entrance(request)
        if self._is_token(request.headers.get("authorization", "").removeprefix("Bearer ")):
            base = ""
        elif _is_below(request.scope["path"], self._settings.base) and self._has_cookie(request):
            base = self._settings.base
        else:
            return PlainTextResponse(_REFUSED, 403)
        if request.method != "GET" and "origin" in request.headers and origin != request.headers.get("host"):
            return PlainTextResponse("Studio accepts changes from its own pages only.", 403)
        if self._running >= MAX_REQUESTS:
            return PlainTextResponse(
                f"Studio answers {MAX_REQUESTS} requests already.", 503, {"Retry-After": "1"}
            )
        request.scope["root_path"] = base
        return None

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._settings.token.encode())

    def _has_cookie(self, request: Request) -> bool:
        """Whether one of the cookies of this name is the token: a server at another port may have set one, too."""
        for text in request.headers.get("cookie", "").split(";"):
            try:
                found = SimpleCookie(text).get(_COOKIE)
            except CookieError:
                continue
            if found is not None and self._is_token(found.value):
                return True
        return False

    def _entrance(self, request: Request) -> Response:
        """A page that goes on to the requested one, without the token, which the cookie holds from now on.

        A redirect would not do: a browser leaves the cookie out of one that began at another site or at a file.
        """
        query = urlencode(
            [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        )
        path = request.scope["path"]
        below = path if _is_below(path, self._settings.base) else self._settings.base + path
        target = escape(f"{below}?{query}" if query else below)
        response = HTMLResponse(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={target}"><a href="{target}">Strop Studio</a>'
        )
        response.set_cookie(
            _COOKIE, self._settings.token, httponly=True, samesite="strict", path=f"{self._settings.base}/"
        )
        return response


def _is_below(path: str, base: str) -> bool:
    return path.startswith(f"{base}/")
