"""Network addresses of this machine: for a Ray cluster's nodes, free ports, and interfaces."""

from __future__ import annotations

import fcntl
import socket
import struct

from strop.workers.ray_runtime import import_ray

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
"""The Linux ioctl that returns an interface's address."""
_ADDRESS_BYTES = slice(20, 24)
"""The address within the ioctl's `struct ifreq`."""


def node_address() -> str:
    """The address at which the other nodes of the Ray cluster reach this node."""
    import_ray()
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())  # type: ignore[no-untyped-call]


def find_free_port(host: str) -> int:
    """A port of this machine at `host` on which no process listens at the moment."""
    with socket.create_server((host, 0)) as probe:
        return int(probe.getsockname()[1])


def source_address(host: str, port: int) -> str:
    """The address of this machine from which packets to `host` are sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # a datagram socket sends nothing here
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The name of this machine's network interface with an address; None if no interface has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # an interface without an address
            if socket.inet_ntoa(found[_ADDRESS_BYTES]) == address:
                return name
    return None
