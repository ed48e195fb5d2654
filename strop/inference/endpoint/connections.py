"""Connections of the endpoint: those that do not authenticate in time, or are idle for long, are closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sized
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

log = logging.getLogger("strop.endpoint")

AUTHENTICATION_SECONDS = 60.0
"""Timeout for the first request's headers, with a valid API key, after a connection is opened: all rollouts of a step
connect at once, in the same process, and its event loops may be slow on a busy machine."""
IDLE_SECONDS = 75.0
"""Timeout for the next request on an open connection."""
_LINGER_SECONDS = 1.0
"""Longest time for which the rest of a request is read and ignored after its response."""
MAX_UNAUTHENTICATED = 256
"""Maximum number of connections that are not authenticated yet, of the endpoint of a run."""
CONNECTIONS_PER_KEY = 4
"""Number of connections that the client of each API key may open before its first request arrives: the rollouts of a
step connect at once, and the server accepts all of them before it reads from the first."""

_CLIENT_ERRORS = (HttpProcessingError, web.RequestPayloadError)


class ClientConnections:
    """Makes the protocols of a server's connections; for the event loop's thread."""

    def __init__(self, server: web.Server, keys: Sized, max_unauthenticated: int) -> None:
        """`keys`: the registered API keys. `max_unauthenticated` is the maximum number of connections that are not
        authenticated yet, beyond those of the registered clients; one more closes the oldest."""
        self._max_unauthenticated = max_unauthenticated
        self._server = server
        self._keys = keys
        self._unauthenticated: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        """Timers that close the connections, oldest first."""

    def make_protocol(self) -> web.RequestHandler:
        """Protocol of a new connection."""
        return ClientConnection(self, self._server)

    def opened(self, connection: web.RequestHandler) -> None:
        """Close the connection after a time, unless it is authenticated before."""
        if len(self._unauthenticated) >= self._max_unauthenticated + CONNECTIONS_PER_KEY * len(self._keys):
            self._abort(next(iter(self._unauthenticated)))
        timer = asyncio.get_running_loop().call_later(AUTHENTICATION_SECONDS, self._abort, connection)
        self._unauthenticated[connection] = timer

    def authenticated(self, connection: web.RequestHandler) -> None:
        """The connection has sent a valid API key, or is closed."""
        timer = self._unauthenticated.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _abort(self, connection: web.RequestHandler) -> None:
        self.authenticated(connection)
        connection.force_close()


class ClientConnection(web.RequestHandler):
    """One connection."""

    def __init__(self, connections: ClientConnections, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=_LINGER_SECONDS,
            logger=log,
        )
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._connections.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`."""
        self._connections.authenticated(self)
        super().connection_lost(exc)

    def log_exception(self, *args: Any, **keywords: Any) -> None:
        """Log an error of the server; a request that is not valid HTTP is none."""
        level = logging.DEBUG if isinstance(keywords.get("exc_info"), _CLIENT_ERRORS) else logging.ERROR
        log.log(level, *args, **keywords)
