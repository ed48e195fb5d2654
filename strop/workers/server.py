"""The threads of a process that listens: each line has one of its own.

So one whose other end was killed in the middle of a message keeps nobody from serving the next.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import closing

from strop.workers.address import Address
from strop.workers.line import ANSWER_SECONDS, SLICE_SECONDS, HungUp, Line, LineBroken

Serve = Callable[[Line], None]


class Server:
    """Listens until it is closed, and serves whoever knows the token."""

    def __init__(self, host: str, serve: Serve, name: str) -> None:
        """`host` is an address of this machine; `serve` may go on until the line breaks; `name` is the
        threads'."""
        self._name = name
        self._serve = serve
        self._fault: Exception | None = None
        self._closing = threading.Event()
        self._listening = socket.create_server((host, 0))
        self._listening.settimeout(SLICE_SECONDS)
        self.address = Address(host, self._listening.getsockname()[1], secrets.token_hex(16))
        self._threads = [threading.Thread(target=self._listen, name=name, daemon=True)]
        self._threads[0].start()

    @property
    def lines(self) -> int:
        """How many are open."""
        return sum(thread.is_alive() for thread in self._threads[1:])

    def look(self) -> None:
        """Raises what went wrong in a thread."""
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Hang up; what is under way is broken off at the next check."""
        self._closing.set()
        for thread in self._threads:  # the first one adds the others
            thread.join()
        self._listening.close()

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=self._talk, args=(connection,), name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _talk(self, connection: socket.socket) -> None:
        with closing(Line(connection, self._check)) as line:
            try:
                said = line.receive(limit_seconds=ANSWER_SECONDS)
                if hmac.compare_digest(str(said).encode(), self.address.token.encode()):
                    self._serve(line)
            except LineBroken:
                return
            except Exception as error:  # noqa: BLE001  (`look` raises it in the thread that made this)
                self._fault = error

    def _check(self) -> None:
        if self._closing.is_set():
            raise HungUp
