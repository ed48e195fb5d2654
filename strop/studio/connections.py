"""Connections of Studio's server: those that bring no request with the token are few, and closed after a time."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import time
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("strop.studio")

HEADER_SECONDS = 10.0
"""Timeout for the headers of a request, after the connection was opened or the response before was sent."""
MAX_CONNECTIONS = 256
"""Maximum number of open connections; at most a quarter of the files that the process may open."""
_WARNING_SECONDS = 60.0
"""Shortest time between two warnings about connections that cannot be accepted."""
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class BrowserConnections:
    """The open connections of a server; for the event loop's thread."""

    def __init__(self) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._limit = MAX_CONNECTIONS if files < 0 else max(8, min(MAX_CONNECTIONS, files // 4))
        self._strangers: dict[tuple[str, int] | None, BrowserConnection] = {}
        """Connections on which no request has brought the token, by their address, oldest first."""
        self._admitted: dict[tuple[str, int] | None, BrowserConnection] = {}
        self._next_warning = 0.0

    def opened(self, connection: BrowserConnection) -> None:
        """Note a connection; the oldest stranger is closed for one above the limit, and else the new one."""
        self._strangers[connection.client] = connection
        if len(self._strangers) + len(self._admitted) > self._limit:
            self._close_oldest()

    def admitted(self, scope: Scope) -> None:
        """A request of this scope has brought the token."""
        client = scope.get("client")
        found = self._strangers.pop(tuple(client), None) if client else None
        if found is not None:
            self._admitted[found.client] = found

    def closed(self, connection: BrowserConnection) -> None:
        """Forget a connection."""
        for known in (self._strangers, self._admitted):
            if known.get(connection.client) is connection:
                del known[connection.client]

    def handle_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Wait out a full table of files or of the kernel's memory, for which the loop asks again after a second.

        Every other error is handled as an event loop does.
        """
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _NO_RESOURCES or "socket" not in context:
            loop.default_exception_handler(context)
            return
        self._close_oldest()
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + _WARNING_SECONDS
            log.warning(
                "Studio cannot accept a connection: %s. It tries again until it can; `ulimit -n` shows the limit of "
                "open files.",
                error.strerror,
            )

    def _close_oldest(self) -> None:
        oldest = next(iter(self._strangers.values()), None)
        if oldest is not None:
            oldest.abort()


class BrowserConnection(H11Protocol):
    """One connection."""

    def __init__(self, connections: BrowserConnections, **options: Any) -> None:
        super().__init__(**options)
        self._connections = connections
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._await_headers()
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_waiting()
        self._connections.closed(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what has been received; with a request's headers their time ends."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """A response was sent; the next request may begin."""
        if not self.transport.is_closing():
            self._await_headers()
        super().on_response_complete()

    def abort(self) -> None:
        """Close the connection at once."""
        self._stop_waiting()
        self._connections.closed(self)
        self.transport.abort()

    def _await_headers(self) -> None:
        self._stop_waiting()
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.abort)

    def _stop_waiting(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
