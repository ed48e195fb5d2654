"""The main module of a `LocalWorker`'s process."""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

_HEARTBEAT_SECONDS = 1.0
_EXIT_GRACE_SECONDS = 2.0
"""Time in which the target ends by itself after the parent's end."""


class _PipeChannel:
    """A `Channel` over the inherited pipe."""

    def __init__(self, connection: Connection[bytes, bytes]) -> None:
        self._connection = connection

    def receive(self) -> Any:
        try:
            return pickle.loads(self._connection.recv_bytes())
        except ConnectionError:
            raise EOFError from None

    def send(self, message: object) -> None:
        self._connection.send_bytes(pickle.dumps(message))


def main() -> None:
    """Run the target that arrives first on the pipe with file descriptor `argv[1]`, until the parent ends.

    Heartbeats go to the pipe with descriptor `argv[2]`; `argv[3]` is the worker's name, for lists of processes.
    """
    descriptor, heartbeats = map(int, sys.argv[1:3])
    threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()
    threading.Thread(target=_send_heartbeats, args=(heartbeats,), daemon=True).start()
    channel = _PipeChannel(Connection(descriptor))
    try:
        channel.receive()(channel)
    except (EOFError, ConnectionError):
        return


def _end_with_parent(descriptor: int) -> None:
    """End this process and those that it started after the parent's end, even if the target waits for something
    else, such as another rank."""
    poll = select.poll()
    poll.register(descriptor, 0)  # reports only that the other end of the pipe is closed
    poll.poll()
    time.sleep(_EXIT_GRACE_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _send_heartbeats(descriptor: int) -> None:
    """Write a byte each second, until the parent ends."""
    with suppress(BrokenPipeError):
        while True:
            os.write(descriptor, b".")
            time.sleep(_HEARTBEAT_SECONDS)


if __name__ == "__main__":
    main()
