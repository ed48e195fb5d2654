"""How ranks on several nodes find each other, and by which network they speak."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from urllib.parse import urlsplit

from strop.workers.ray_worker import node_address

_SPOKEN_BY = "GLOO_SOCKET_IFNAME"
_ADDRESS_OF = 0x8915  # SIOCGIFADDR
_ADDRESS_AT = slice(20, 24)


def meeting_on_cluster() -> str:
    """An address of this node that is free."""
    host = node_address()
    with socket.create_server((host, 0)) as probe:
        return f"tcp://{host}:{probe.getsockname()[1]}"


def speak_towards(meeting: str) -> None:
    """Let gloo use the network by which this machine reaches the meeting; by itself it would take the one
    that the machine's own name stands for, which may lead nowhere. What the user has set stays."""
    place = urlsplit(meeting)
    if place.hostname is None or _SPOKEN_BY in os.environ:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((place.hostname, place.port))  # which sends nothing
        own = probe.getsockname()[0]
    name = _interface_of(own)
    if name is not None:
        os.environ[_SPOKEN_BY] = name


def _interface_of(address: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), _ADDRESS_OF, struct.pack("256s", name.encode()))
            except OSError:
                continue  # it has no address
            if socket.inet_ntoa(found[_ADDRESS_AT]) == address:
                return name
    return None
