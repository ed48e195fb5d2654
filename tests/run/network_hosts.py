"""Two hosts for tests: network namespaces of this machine with a cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Host:
    """A network namespace. Its interfaces and addresses are its own, so that tests may run at the same time."""

    name: str
    address: str
    device: str
    """The interface at this host's end of the cable."""

    @property
    def enter(self) -> tuple[str, ...]:
        """The beginning of a command that runs on this host."""
        return ("ip", "netns", "exec", self.name)

    def ip(self, *arguments: str) -> None:
        """Run `ip` on this host."""
        assert _ip("-n", self.name, *arguments), arguments

    def cut_cable(self) -> None:
        """Take this end of the cable out: no packet passes, and nothing is closed."""
        self.ip("link", "set", self.device, "down")


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """The hosts until the end of the context, which kills their processes. Skips the test where none can be made."""
    prefix = f"strop-{os.getpid()}"
    first, second = (
        Host(f"{prefix}-a", "10.213.7.1", "left"),
        Host(f"{prefix}-b", "10.213.7.2", "right"),
    )
    try:
        if not _make(first, second):
            pytest.skip("network namespaces are not permitted")
        for host in (first, second):
            host.ip("link", "set", "lo", "up")
            host.ip("address", "add", f"{host.address}/24", "dev", host.device)
            host.ip("link", "set", host.device, "up")
        yield first, second
    finally:
        for host in (first, second):
            _delete(host)


def _make(first: Host, second: Host) -> bool:
    if shutil.which("ip") is None or not all(_ip("netns", "add", host.name) for host in (first, second)):
        return False
    ends = (first.device, "netns", first.name, "type", "veth", "peer", second.device, "netns", second.name)
    return _ip("link", "add", *ends)


def _delete(host: Host) -> None:
    listed = subprocess.run(["ip", "netns", "pids", host.name], capture_output=True, text=True, check=False)
    for pid in listed.stdout.split():
        subprocess.run(["kill", "-9", pid], check=False, capture_output=True)
    _ip("netns", "delete", host.name)


def _ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0
