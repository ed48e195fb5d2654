"""Network addresses and interfaces of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
from pathlib import Path

from strop.errors import PlacementError
from strop.workers.ray_runtime import import_ray

LOOPBACK = "127.0.0.1"
_OPEN_FILES = Path("/proc/self/fd")
_SIOCGIFADDR = 0x8915
"""The Linux ioctl that returns an interface's address."""
_ADDRESS_BYTES = slice(20, 24)
"""The address within the ioctl's `struct ifreq`."""


def node_address() -> str:
    """The address at which the other nodes of the Ray cluster reach this node."""
    import_ray()
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())  # type: ignore[no-untyped-call]


def source_address(host: str, port: int) -> str:
    """The address of this machine from which packets to `host` are sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # a datagram socket sends nothing here
        return str(probe.getsockname()[0])


def shut_down_connections(address: str) -> None:
    """Shut down all TCP connections of this process to a node that does not respond.

    What waits for data of such a connection, such as a collective operation of gloo, otherwise waits until its timeout;
    aborting gloo's process group does not wake it. Does nothing for an address of this machine, where the end of a
    process closes its connections, and on systems without `/proc`.
    """
    if source_address(address, 1) == address or not _OPEN_FILES.is_dir():
        return
    for entry in list(_OPEN_FILES.iterdir()):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            descriptor = int(entry.name)
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    peer = connection.getpeername()[0]
                    if peer.removeprefix("::ffff:") == address:
                        connection.shutdown(socket.SHUT_RDWR)


def interface_of(address: str) -> str | None:
    """The name of this machine's network interface with an address; None if no interface has it."""
    return next((name for name, found in _interfaces().items() if found == address), None)


def interface_address(name: str) -> str:
    """The IPv4 address of one of this machine's network interfaces. Raises PlacementError if there is none."""
    interfaces = _interfaces()
    if name not in interfaces:
        known = ", ".join(f"{each} ({address})" for each, address in interfaces.items())
        raise PlacementError(
            f"trainer.engine.network.interface is {name!r}, and this machine has no such interface with an address; it "
            f"has {known}."
        )
    return interfaces[name]


def _interfaces() -> dict[str, str]:
    """The IPv4 address of each of this machine's network interfaces that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue  # an interface without an address
            found[name] = socket.inet_ntoa(reply[_ADDRESS_BYTES])
    return found
