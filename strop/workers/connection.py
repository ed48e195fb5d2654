"""Messages between two processes over a TCP socket: JSON or bytes, each preceded by its length."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from strop.workers.waiting import StopCheck

POLL_SECONDS = 0.2
"""Longest wait without a stop check."""
PEER_TIMEOUT_SECONDS = 60.0
"""Peer timeout for one send or receive; a peer that exceeds it counts as lost."""
_LENGTH = struct.Struct("!I")
_MAX_MESSAGE_BYTES = 1 << 28


class ConnectionLost(Exception):
    """The peer has closed the connection, exceeded the timeout, or sent something that is not a message."""


class Disconnected(ConnectionLost):
    """This process closes the connection: raised by a stop check."""


class SocketConnection:
    """One end of a connection. `check` is called while it waits, and may raise."""

    def __init__(self, connection: socket.socket, check: StopCheck) -> None:
        """Raises `ConnectionLost` if the peer is gone already."""
        self._socket = connection
        with self._lost_on_error():
            connection.settimeout(POLL_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.check = check

    def send(self, message: Any, *, timeout_seconds: float) -> None:
        """Send a message as JSON. Raises `ConnectionLost` if the peer does not receive it in time."""
        self.send_bytes(json.dumps(message).encode(), timeout_seconds=timeout_seconds)

    def send_bytes(self, content: bytes, *, timeout_seconds: float) -> None:
        """Send bytes. Raises `ConnectionLost` if the peer does not receive them in time."""
        self.write(_LENGTH.pack(len(content)) + content, time.monotonic() + timeout_seconds)

    def receive(self, *, timeout_seconds: float | None = None) -> Any:
        """The next JSON message. Raises `ConnectionLost` if none arrives in time; None sets no limit."""
        try:
            return json.loads(self.receive_bytes(timeout_seconds=timeout_seconds))
        except (ValueError, RecursionError) as error:
            raise ConnectionLost from error

    def receive_bytes(self, *, timeout_seconds: float | None = None) -> bytes:
        """The next message as bytes. Raises `ConnectionLost` if none arrives in time; None sets no limit."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        (length,) = _LENGTH.unpack(self.read(_LENGTH.size, deadline))
        if length > _MAX_MESSAGE_BYTES:
            raise ConnectionLost
        return self.read(length, deadline)

    @property
    def local_host(self) -> str:
        """Address of this machine from which the peer is reached."""
        return str(self._socket.getsockname()[0])

    @property
    def peer_host(self) -> str:
        """Address of the peer."""
        return str(self._socket.getpeername()[0])

    def close(self) -> None:
        """Close the connection; the peer gets `ConnectionLost`."""
        self._socket.close()

    def write(self, content: bytes, deadline: float) -> None:
        """Send bytes without a length. Raises `ConnectionLost` if they are not sent at the deadline, a time of
        `time.monotonic`."""
        unsent = memoryview(content)
        while True:
            self.check()
            with self._lost_on_error():
                unsent = unsent[self._socket.send(unsent) :]
            if not unsent:
                return
            _require_time(deadline)

    def read(self, count: int, deadline: float | None) -> bytes:
        """Receive exactly `count` bytes. Raises `ConnectionLost` if they are not there at the deadline."""
        received = bytearray()
        while len(received) < count:
            self.check()
            with self._lost_on_error():
                chunk = self._socket.recv(count - len(received))
                if not chunk:
                    raise ConnectionLost
                received += chunk
            if len(received) < count:
                _require_time(deadline)
        return bytes(received)

    @contextlib.contextmanager
    def _lost_on_error(self) -> Iterator[None]:
        """Raises `ConnectionLost` for a socket error that is not the end of a poll."""
        try:
            yield
        except TimeoutError:
            return
        except OSError as error:
            raise ConnectionLost from error


def _require_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise ConnectionLost
