"""A free port for a server whose command takes a port's number, in benchmarks and tests."""

from __future__ import annotations

import socket


def find_free_port(host: str) -> int:
    """A port of this machine at `host` on which no process listens at the moment; one may before it is used."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])
