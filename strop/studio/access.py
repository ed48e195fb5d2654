"""Access to Studio: a token in the first URL, kept in a cookie afterwards; requests of other sites are refused."""

from __future__ import annotations

import hmac
from urllib.parse import urlencode, urlsplit

from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from strop.studio.settings import StudioSettings

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""Names under which a browser on this machine, or at the other end of an SSH tunnel, reaches the server."""
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; "
    "form-action 'self'; base-uri 'none'"
)
_REFUSED = "This page needs the token of the URL that `strop studio` printed. Open that URL."


class AccessMiddleware(BaseHTTPMiddleware):
    """Answers only requests that name this machine and bring the token."""

    def __init__(self, app: ASGIApp, settings: StudioSettings) -> None:
        super().__init__(app)
        self._settings = settings

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Check a request, and add the headers that restrict the page to this server."""
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        if host not in {name.strip("[]") for name in LOCAL_HOSTS}:
            return PlainTextResponse("Studio answers only under 127.0.0.1 and localhost.", 421)
        given = request.query_params.get("token")
        if given is not None and self._is_token(given) and request.method == "GET":
            return self._with_cookie(request)
        if not self._is_token(request.cookies.get(self._settings.cookie, "")):
            return PlainTextResponse(_REFUSED, 403)
        origin = request.headers.get("origin")
        if request.method != "GET" and origin and urlsplit(origin).netloc != request.headers.get("host"):
            return PlainTextResponse("Studio accepts changes from its own pages only.", 403)
        response = await call_next(request)
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._settings.token.encode())

    def _with_cookie(self, request: Request) -> Response:
        """Redirect to the same page without the token, which the cookie holds from now on."""
        query = urlencode(
            [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        )
        response = RedirectResponse(f"{request.url.path}?{query}" if query else request.url.path, 303)
        response.set_cookie(
            self._settings.cookie, self._settings.token, httponly=True, samesite="strict", path="/"
        )
        return response
