"""Messages between two processes: JSON or bytes over a socket, each with its length before it."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from strop.workers.address import Address

SLICE_SECONDS = 0.2
"""No wait is longer without a check."""
ANSWER_SECONDS = 60.0
"""Who takes longer to say or hear a word is taken for dead."""
_LENGTH = struct.Struct("!I")
_MOST_BYTES = 1 << 28

Check = Callable[[], None]


class LineBroken(Exception):
    """The other end is gone, or silent, or says what nobody understands."""


class HungUp(LineBroken):
    """This end was told to break it: what a check raises where a line is to be closed."""


class Line:
    """One end. `check` is called while it waits, and may raise."""

    def __init__(self, connection: socket.socket, check: Check) -> None:
        connection.settimeout(SLICE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self.check = check

    def send(self, message: Any, *, limit_seconds: float) -> None:
        """Raises `LineBroken` where the other end does not take it."""
        self.send_bytes(json.dumps(message).encode(), limit_seconds=limit_seconds)

    def send_bytes(self, content: bytes, *, limit_seconds: float) -> None:
        """The same for what is no JSON."""
        left, until = memoryview(_LENGTH.pack(len(content)) + content), time.monotonic() + limit_seconds
        while left:
            self.check()
            with self._broken_after(until):
                left = left[self._socket.send(left) :]

    def receive(self, *, limit_seconds: float | None = None) -> Any:
        """The next message. Raises `LineBroken` where none comes."""
        try:
            return json.loads(self.receive_bytes(limit_seconds=limit_seconds))
        except ValueError as error:
            raise LineBroken from error

    def receive_bytes(self, *, limit_seconds: float | None = None) -> bytes:
        """The same for what is no JSON."""
        until = None if limit_seconds is None else time.monotonic() + limit_seconds
        (length,) = _LENGTH.unpack(self._bytes(_LENGTH.size, until))
        if length > _MOST_BYTES:
            raise LineBroken
        return self._bytes(length, until)

    def close(self) -> None:
        """The other end hears of it."""
        self._socket.close()

    def _bytes(self, count: int, until: float | None) -> bytes:
        found = bytearray()
        while len(found) < count:
            self.check()
            with self._broken_after(until):
                part = self._socket.recv(count - len(found))
                if not part:
                    raise LineBroken
                found += part
        return bytes(found)

    @contextlib.contextmanager
    def _broken_after(self, until: float | None) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            if until is not None and time.monotonic() > until:
                raise LineBroken from error
        except OSError as error:
            raise LineBroken from error


def reach(address: Address | None, check: Check) -> Line | None:
    """A line to whoever listens there; None where nobody does."""
    if address is None:
        return None
    try:
        connection = socket.create_connection((address.host, address.port), timeout=SLICE_SECONDS)
    except OSError:
        return None
    line = Line(connection, check)
    try:
        line.send(address.token, limit_seconds=ANSWER_SECONDS)
    except LineBroken:
        line.close()
        return None
    return line
