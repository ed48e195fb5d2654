"""The main module of a `LocalWorker`'s process."""

from __future__ import annotations

import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any


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

    `argv[2]` is the worker's name, for lists of processes.
    """
    channel = _PipeChannel(Connection(int(sys.argv[1])))
    try:
        channel.receive()(channel)
    except (EOFError, ConnectionError):
        return


if __name__ == "__main__":
    main()
