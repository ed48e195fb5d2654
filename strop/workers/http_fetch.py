"""HTTP requests whose answer has a limit of bytes and of seconds, also where a server sends a byte now and then."""

from __future__ import annotations

import http.client
import io
import random
import socket
import ssl
import threading
from contextlib import suppress
from functools import cache
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, Request, build_opener

_MAX_ERROR_BYTES = 10_000
"""Maximum number of bytes that are read of the body of an error."""
FATAL_STATUSES = (401, 403, 404)
"""Every request will fail: the key, the model or the address is wrong."""
RETRYABLE_STATUSES = (408, 409, 425, 429, 500, 502, 503, 504)
"""Another attempt may succeed."""
_MAX_WAIT_SECONDS = 60.0


def fetch(request: Request, *, timeout_seconds: float, max_bytes: int) -> bytes:
    """The first `max_bytes` of the answer's body.

    Raises HTTPError for an error status (its body is read already), TimeoutError where the answer is not complete in
    `timeout_seconds`, and OSError or HTTPException for one that breaks off or is no HTTP.
    """
    deadline = _Deadline(timeout_seconds)
    try:
        content = _read(
            build_opener(_Plain(deadline), _Secure(deadline)), request, timeout_seconds, max_bytes
        )
    except (OSError, http.client.HTTPException, ValueError):
        deadline.check()
        raise
    finally:
        deadline.cancel()
    deadline.check()
    return content


def _read(opener: OpenerDirector, request: Request, timeout_seconds: float, max_bytes: int) -> bytes:
    try:
        with opener.open(request, timeout=timeout_seconds) as response:
            content: bytes = response.read(max_bytes)
            if response.length and len(content) < max_bytes:
                raise http.client.IncompleteRead(content, response.length)
            return content
    except HTTPError as error:
        with error:
            body = error.read(_MAX_ERROR_BYTES)
        raise HTTPError(error.url, error.code, error.reason, error.headers, io.BytesIO(body)) from None


class _Deadline:
    """Ends the connections of a request at its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._connections: list[_Connection] = []
        self._is_over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def connection(self, kind: type[_Connection], *arguments: Any, **named: Any) -> _Connection:
        self.check()
        self._connections.append(kind(*arguments, **named))
        return self._connections[-1]

    def check(self) -> None:
        if self._is_over:
            raise TimeoutError(f"no complete answer in {self._seconds:g} s")

    def cancel(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        self._is_over = True
        for connection in self._connections:
            opened = connection.sock or connection.opened
            if opened is not None:
                with suppress(OSError):  # it is closed already
                    socket.socket.shutdown(
                        opened, socket.SHUT_RDWR
                    )  # below the encryption, which a thread may read


class _Connection(http.client.HTTPConnection):
    opened: socket.socket | None = None
    """The socket, which the answer takes away from the connection."""

    def connect(self) -> None:
        super().connect()
        self.opened = self.sock


class _SecureConnection(_Connection, http.client.HTTPSConnection):
    pass


class _Plain(HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(
            lambda *arguments, **named: self._deadline.connection(_Connection, *arguments, **named),
            request,
        )


class _Secure(HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__(context=_context())
        self._deadline = deadline

    def https_open(self, request: Request) -> http.client.HTTPResponse:
        return self.do_open(
            lambda *arguments, **named: self._deadline.connection(_SecureConnection, *arguments, **named),
            request,
            context=_context(),
        )


@cache
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()


def retry_wait_seconds(attempt: int, backoff_seconds: float, retry_after: str | None = None) -> float:
    """Wait after a failed attempt, counted from 0: `backoff_seconds`, doubled with each attempt.

    The server's header `Retry-After` takes precedence if it is a positive number. The wait is up to 20 % longer at
    random, so that concurrent requests do not all come again at the same moment.
    """
    wait = _seconds(retry_after) or backoff_seconds * 2**attempt
    return min(wait, _MAX_WAIT_SECONDS) * random.uniform(1.0, 1.2)


def _seconds(retry_after: str | None) -> float | None:
    try:
        seconds = float(retry_after or "")
    except ValueError:  # missing, or a date
        return None
    return seconds if seconds > 0 else None  # neither negative nor NaN
