"""Peers that do not know the token of a server, and what they send."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Iterator

from strop.workers.connection import Address

MESSAGES = {
    "nothing": b"",
    "one byte": b"\0",
    "half a length": b"\0\0",
    "lone surrogate": json.dumps("\ud800").encode(),
    "deep JSON": b"[" * 100_000,
    "not UTF-8": b"\xff" * 30,
    "guessed token": b'"' + b"0" * 32 + b'"',
    "guessed proof": b"\0" * 64,
    "HTTP": b"GET / HTTP/1.1\r\nHost: strop\r\n\r\n",
    "TLS": bytes.fromhex("160301020001000200fc0303") + b"\x01" * 500,
    **{f"random {size}": random.Random(size).randbytes(size) for size in (3, 63, 64, 65, 1000, 70_000)},
}
"""First messages of strangers."""


def framed(content: bytes) -> bytes:
    """The content as a message of a connection that is authenticated."""
    return struct.pack("!I", len(content)) + content


def open_socket(address: Address) -> socket.socket:
    """A socket that is connected to a server on this machine."""
    return socket.create_connection(("127.0.0.1", address.port), timeout=600)


@contextlib.contextmanager
def closed_by_server() -> Iterator[None]:
    """A context that ends when the server closes or resets the connection; a timeout is an error."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError:
        return


def send_and_close(address: Address, content: bytes, *, reset: bool) -> None:
    """Send bytes, and close the connection by FIN or by RST."""
    with closed_by_server(), open_socket(address) as opened:
        if reset:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        opened.sendall(content)


def replies(address: Address, content: bytes) -> bytes:
    """All bytes that the server sends until it closes the connection."""
    received = b""
    with closed_by_server(), open_socket(address) as opened:
        opened.sendall(content)
        opened.shutdown(socket.SHUT_WR)
        while chunk := opened.recv(1 << 16):
            received += chunk
    return received


def bytes_until_closed(address: Address, chunk: bytes, count: int, pause_seconds: float = 0.0) -> int:
    """Number of bytes sent in up to `count` chunks until the server closes the connection."""
    sent = 0
    with closed_by_server(), open_socket(address) as opened:
        for _ in range(count):
            sent += opened.send(chunk)
            time.sleep(pause_seconds)
    return sent


@contextlib.contextmanager
def idle_connections(address: Address, count: int) -> Iterator[None]:
    """Connections that send nothing."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(open_socket(address))
        yield
