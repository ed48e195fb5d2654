"""The address of a listening process, and connections to it.

A listening process writes its `Address` to a file; other processes read the file and `connect`.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from strop.workers.atomic_write import atomic_write
from strop.workers.authentication import authenticate_server
from strop.workers.connection import POLL_SECONDS, ConnectionLost, SocketConnection
from strop.workers.tls import client_context
from strop.workers.waiting import StopCheck


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a listening process; a restarted process has a new one."""

    host: str
    port: int
    token: str
    """A secret of the server and its clients, see `authentication`. It is written to the address file only, so
    that every process that may read the run's folder can connect."""
    certificate: str | None = None
    """The server's certificate, in PEM; None for a server on loopback, which does not use TLS."""

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


def connect(address: Address | None, check: StopCheck) -> SocketConnection | None:
    """A connection to the process that listens at an address; None if no process that knows the token does."""
    if address is None:
        return None
    try:
        opened = socket.create_connection((address.host, address.port), timeout=POLL_SECONDS)
    except OSError:
        return None
    try:
        if address.certificate is not None:
            context = client_context(address.certificate)
            opened = context.wrap_socket(opened, do_handshake_on_connect=False)  # the first write does it
        connection = SocketConnection(opened, check)
        authenticate_server(connection, address.token)
    except (ConnectionLost, OSError):
        opened.close()
        return None
    except BaseException:
        opened.close()
        raise
    return connection
