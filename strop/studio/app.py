"""Web application of Strop Studio: routes, access and errors."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from strop.errors import StropError, message_with_notes
from strop.studio.access import AccessMiddleware, base_path
from strop.studio.pages import chat, comparison, compose, rating, rollouts, run_actions, run_list, run_view
from strop.studio.rendering import html, static_file, url
from strop.studio.run_cache import RunCache
from strop.studio.settings import StudioSettings


def make_app(settings: StudioSettings, admitted: Callable[[Scope], None] = lambda scope: None) -> Starlette:
    """The application; `app.state` has the settings and the cache of run folders.

    `admitted` is called with the scope of each request that brings the token.
    """
    app = Starlette(
        routes=[
            Route("/", _home),
            Route("/static/{name}", _static),
            *run_list.ROUTES,
            *run_view.ROUTES,
            *run_actions.ROUTES,
            *chat.ROUTES,
            *rollouts.ROUTES,
            *comparison.ROUTES,
            *compose.ROUTES,
            *rating.ROUTES,
        ],
        middleware=[Middleware(AccessMiddleware, settings=settings, admitted=admitted)],
        exception_handlers={StropError: _error, 404: _not_found},
    )
    app.state.settings = settings
    app.state.cache = RunCache()
    return app


def _home(request: Request) -> Response:
    return RedirectResponse(url("/runs"))


def _static(request: Request) -> Response:
    return static_file(request.path_params["name"])


def _error(request: Request, error: Exception) -> Response:
    """A user's mistake: the message, as a page, or as JSON for a script of the page."""
    message = message_with_notes(error)
    if request.method == "POST":
        return JSONResponse({"error": message}, 400)
    page = html("error", title="Error", area="", message=message)
    page.status_code = 400
    return page


def _not_found(request: Request, error: Exception) -> Response:
    path = request.url.path.removeprefix(base_path.get())
    page = html("error", title="Not found", area="", message=f"There is no page {path}.")
    page.status_code = 404
    return page
