"""Messages between two processes over a TCP socket: JSON or bytes, each preceded by its length.

A listening process writes its `Address` to a file; other processes read the file and `connect`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strop.workers.atomic_write import atomic_write
from strop.workers.waiting import StopCheck

POLL_SECONDS = 0.2
"""Longest wait without a stop check."""
PEER_TIMEOUT_SECONDS = 60.0
"""Peer timeout for one send or receive; a peer that exceeds it counts as lost."""
_LENGTH = struct.Struct("!I")
_MAX_MESSAGE_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a listening process; a restarted process has a new one."""

    host: str
    port: int
    token: str
    """A secret that the server requires from its clients. It is written to the address file only, so that every
    process that may read the run's folder can connect."""

    def save(self, path: Path) -> None:
        """Write the address file atomically, readable by this user only."""
        atomic_write(path, json.dumps(asdict(self)) + "\n", mode=0o600)

    @classmethod
    def load(cls, path: Path) -> Address | None:
        """The address in a file; None if there is no file."""
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None


class ConnectionLost(Exception):
    """The peer has closed the connection, exceeded the timeout, or sent something that is not a message."""


class Disconnected(ConnectionLost):
    """This process closes the connection: raised by a stop check."""


class SocketConnection:
    """One end of a connection. `check` is called while it waits, and may raise."""

    def __init__(self, connection: socket.socket, check: StopCheck) -> None:
        connection.settimeout(POLL_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self.check = check

    def send(self, message: Any, *, timeout_seconds: float) -> None:
        """Send a message as JSON. Raises `ConnectionLost` if the peer does not receive it in time."""
        self.send_bytes(json.dumps(message).encode(), timeout_seconds=timeout_seconds)

    def send_bytes(self, content: bytes, *, timeout_seconds: float) -> None:
        """Send bytes. Raises `ConnectionLost` if the peer does not receive them in time."""
        unsent = memoryview(_LENGTH.pack(len(content)) + content)
        deadline = time.monotonic() + timeout_seconds
        while unsent:
            self.check()
            with self._lost_after(deadline):
                unsent = unsent[self._socket.send(unsent) :]

    def receive(self, *, timeout_seconds: float | None = None) -> Any:
        """The next JSON message. Raises `ConnectionLost` if none arrives in time; None sets no limit."""
        try:
            return json.loads(self.receive_bytes(timeout_seconds=timeout_seconds))
        except ValueError as error:
            raise ConnectionLost from error

    def receive_bytes(self, *, timeout_seconds: float | None = None) -> bytes:
        """The next message as bytes. Raises `ConnectionLost` if none arrives in time; None sets no limit."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        (length,) = _LENGTH.unpack(self._receive_exactly(_LENGTH.size, deadline))
        if length > _MAX_MESSAGE_BYTES:
            raise ConnectionLost
        return self._receive_exactly(length, deadline)

    def close(self) -> None:
        """Close the connection; the peer gets `ConnectionLost`."""
        self._socket.close()

    def _receive_exactly(self, count: int, deadline: float | None) -> bytes:
        received = bytearray()
        while len(received) < count:
            self.check()
            with self._lost_after(deadline):
                chunk = self._socket.recv(count - len(received))
                if not chunk:
                    raise ConnectionLost
                received += chunk
        return bytes(received)

    @contextlib.contextmanager
    def _lost_after(self, deadline: float | None) -> Iterator[None]:
        """Raises `ConnectionLost` for a socket error, and for a socket timeout after the deadline."""
        try:
            yield
        except TimeoutError as error:
            if deadline is not None and time.monotonic() > deadline:
                raise ConnectionLost from error
        except OSError as error:
            raise ConnectionLost from error


def connect(address: Address | None, check: StopCheck) -> SocketConnection | None:
    """A connection to the process that listens at an address; None if no process listens there."""
    if address is None:
        return None
    try:
        opened = socket.create_connection((address.host, address.port), timeout=POLL_SECONDS)
    except OSError:
        return None
    connection = SocketConnection(opened, check)
    try:
        connection.send(address.token, timeout_seconds=PEER_TIMEOUT_SECONDS)
    except ConnectionLost:
        connection.close()
        return None
    return connection
