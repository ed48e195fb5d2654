"""A server process that may open few files: `python -m tests.workers.small_server ADDRESS_FILE FILES HOST`.

It returns every message, until its standard input is closed; then it prints the number of its threads.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import threading
from pathlib import Path

from strop.workers.connection import SocketConnection, SocketServer


def echo(connection: SocketConnection) -> None:
    """Return every message."""
    while True:
        connection.send(connection.receive(), timeout_seconds=600)


def main() -> None:
    path, files, host = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    server = SocketServer(host, echo, "strop-echo")
    lowest = os.dup(0)  # the lowest free descriptor
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + int(files), lowest + int(files)))
    server.address.save(Path(path))
    sys.stdin.read()
    server.raise_errors()
    server.close()
    print(threading.active_count())


if __name__ == "__main__":
    main()
