"""A socket server with one thread per connection.

A client that is killed in the middle of a message therefore does not block the other clients. A peer that does
not know the token costs a thread and a socket until `HANDSHAKE_SECONDS` have passed, or until
`MAX_UNAUTHENTICATED` others have connected after it; it cannot end the server or cause an error in its owner.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable

from strop.workers.connection import (
    POLL_SECONDS,
    Address,
    ConnectionLost,
    Disconnected,
    ServerIdentity,
    SocketConnection,
    authenticate_client,
)

log = logging.getLogger("strop.workers")

ConnectionHandler = Callable[[SocketConnection], None]
MAX_UNAUTHENTICATED = 64
"""Maximum number of connections that are not authenticated yet; one more closes the oldest."""
_WARNING_SECONDS = 60.0
"""Shortest time between two warnings about connections that cannot be accepted."""
_PEER_ERRNOS = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR})
"""Errors of `accept` that concern only the one connection."""


class SocketServer:
    """Listens until it is closed, and serves every client that knows the token; by TLS, except on loopback."""

    def __init__(self, host: str, serve: ConnectionHandler, name: str) -> None:
        """`host` is an address of this machine; `serve` handles one connection, until it is lost; `name` is
        the threads' name. Raises `MissingExtraError` without the package that TLS needs."""
        self._name = name
        self._handler = serve
        self._error: Exception | None = None
        self._next_warning = 0.0
        self._closing = threading.Event()
        self._changed = threading.Condition()
        """Guards the two collections of connections, and is notified when one ends."""
        self._unauthenticated: dict[threading.Thread, socket.socket] = {}
        """Connections before the end of their handshake, oldest first."""
        self._clients: set[threading.Thread] = set()
        identity = None if ipaddress.ip_address(host).is_loopback else ServerIdentity.create()
        self._tls = None if identity is None else identity.context
        self._listening = socket.create_server((host, 0))
        self._listening.settimeout(POLL_SECONDS)
        self.address = Address(
            host,
            self._listening.getsockname()[1],
            secrets.token_hex(16),
            None if identity is None else identity.certificate,
        )
        self._accepting = threading.Thread(target=self._accept_loop, name=name, daemon=True)
        self._accepting.start()

    @property
    def open_connections(self) -> int:
        """Number of open connections of authenticated clients."""
        return len(self._clients)

    def raise_errors(self) -> None:
        """Raise the last exception of a connection's thread, if there was one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop listening, and close all connections at their next stop check."""
        self._closing.set()
        self._accepting.join()
        with self._changed:
            threads = [*self._unauthenticated, *self._clients]
        for thread in threads:
            thread.join()
        self._listening.close()

    def _accept_loop(self) -> None:
        while not self._closing.is_set():
            try:
                opened, _ = self._listening.accept()
                self._start(opened)
            except TimeoutError:
                continue
            except OSError as error:
                if error.errno not in _PEER_ERRNOS:
                    self._wait_for_resources(error)

    def _start(self, opened: socket.socket) -> None:
        """Handle a connection in a thread of its own."""
        if self._tls is not None:
            try:
                opened = self._tls.wrap_socket(opened, server_side=True, do_handshake_on_connect=False)
            except OSError:  # the peer is gone already
                opened.close()
                return
        thread = threading.Thread(target=self._run, args=(opened,), name=self._name, daemon=True)
        with self._changed:
            while len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
                self._close_oldest()
            self._unauthenticated[thread] = opened
        try:
            thread.start()
        except RuntimeError as error:  # the system allows no more threads
            self._remove(thread, opened)
            raise OSError(errno.ENOMEM, str(error)) from error

    def _run(self, opened: socket.socket) -> None:
        thread = threading.current_thread()
        try:
            connection = SocketConnection(opened, self._check)
            authenticate_client(connection, self.address.token)
            with self._changed:
                del self._unauthenticated[thread]
                self._clients.add(thread)
            self._handler(connection)
        except ConnectionLost:
            return
        except Exception as error:  # noqa: BLE001  (`raise_errors` raises it in the owner's thread)
            self._error = error
        finally:
            self._remove(thread, opened)

    def _remove(self, thread: threading.Thread, opened: socket.socket) -> None:
        with self._changed:
            self._unauthenticated.pop(thread, None)
            self._clients.discard(thread)
            opened.close()
            self._changed.notify_all()

    def _close_oldest(self) -> None:
        """Close the oldest unauthenticated connection, and wait until a connection has ended. Needs the lock."""
        oldest = next(iter(self._unauthenticated.values()), None)
        if oldest is not None:
            with contextlib.suppress(OSError):  # the peer may have closed it
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # wakes its thread, also under TLS
        self._changed.wait(POLL_SECONDS)

    def _wait_for_resources(self, error: OSError) -> None:
        """After an error such as EMFILE: close the oldest unauthenticated connection, and wait for a moment."""
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + _WARNING_SECONDS
            log.warning(
                "%s cannot accept a connection: %s. It tries again until it can; `ulimit -n` shows the limit "
                "of open files.",
                self._name,
                error.strerror,
            )
        with self._changed:
            self._close_oldest()

    def _check(self) -> None:
        if self._closing.is_set():
            raise Disconnected
