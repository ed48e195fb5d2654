"""A socket server with one thread per connection.

A client that is killed in the middle of a message therefore does not block the other clients.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import closing

from strop.workers.connection import (
    PEER_TIMEOUT_SECONDS,
    POLL_SECONDS,
    Address,
    ConnectionLost,
    Disconnected,
    SocketConnection,
)

ConnectionHandler = Callable[[SocketConnection], None]


class SocketServer:
    """Listens until it is closed, and serves every client that knows the token."""

    def __init__(self, host: str, serve: ConnectionHandler, name: str) -> None:
        """`host` is an address of this machine; `serve` handles one connection, until it is lost; `name` is
        the threads' name."""
        self._name = name
        self._handler = serve
        self._error: Exception | None = None
        self._closing = threading.Event()
        self._listening = socket.create_server((host, 0))
        self._listening.settimeout(POLL_SECONDS)
        self.address = Address(host, self._listening.getsockname()[1], secrets.token_hex(16))
        self._threads = [threading.Thread(target=self._accept_loop, name=name, daemon=True)]
        self._threads[0].start()

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        return sum(thread.is_alive() for thread in self._threads[1:])

    def raise_errors(self) -> None:
        """Raise the last exception of a connection's thread, if there was one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop listening, and close all connections at their next stop check."""
        self._closing.set()
        for thread in self._threads:  # the accept loop, which adds the others, is the first and joined first
            thread.join()
        self._listening.close()

    def _accept_loop(self) -> None:
        while not self._closing.is_set():
            try:
                opened, _ = self._listening.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(
                target=self._handle_connection, args=(opened,), name=self._name, daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _handle_connection(self, opened: socket.socket) -> None:
        with closing(SocketConnection(opened, self._check)) as connection:
            try:
                token = connection.receive(timeout_seconds=PEER_TIMEOUT_SECONDS)
                if hmac.compare_digest(str(token).encode(), self.address.token.encode()):
                    self._handler(connection)
            except ConnectionLost:
                return
            except Exception as error:  # noqa: BLE001  (`raise_errors` raises it in the owner's thread)
                self._error = error

    def _check(self) -> None:
        if self._closing.is_set():
            raise Disconnected
