"""Connections of strangers to a server: requests whose status counts, and connections that send nothing."""

from __future__ import annotations

import http.client
import socket
from contextlib import ExitStack

LIMIT = 300.0
"""Seconds that only a hang reaches."""


def status_of(port: int, token: str, path: str, **headers: str) -> int:
    """Status of the answer to a request, which is tried again where its connection is closed."""
    for _ in range(100):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}", **headers})
            return connection.getresponse().status
        except (ConnectionError, http.client.RemoteDisconnected):
            continue
        finally:
            connection.close()
    raise AssertionError("no request was answered")


def idle(port: int, count: int, stack: ExitStack, sent: bytes = b"") -> list[socket.socket]:
    """Open connections that send no request, or a part of one."""
    opened = []
    for _ in range(count):
        opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT)))
        opened[-1].sendall(sent)
    return opened
