"""Servers whose peers do not know the token: no fault, bounded resources, and other clients are served."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from strop.buffer.factory import BUFFER_ADDRESS_FILE, serve_buffer
from strop.buffer.remote import BufferClientRole, RemoteStore
from strop.config.schema.buffer import CollectiveSyncConfig, QueueBufferConfig
from strop.protocols import BufferCounts
from strop.sync.collective.receiver import CollectiveReceiver
from strop.sync.collective.sender import TRAINER_ADDRESS_FILE, CollectiveSender
from strop.sync.transport import REQUESTED
from strop.workers import connection
from strop.workers.connection import (
    MAX_UNAUTHENTICATED,
    Address,
    ConnectionLost,
    SocketConnection,
    SocketServer,
    authenticate_client,
    connect,
)
from strop.workers.waiting import never_stop, wait_until
from tests.workers.hostile_peers import (
    MESSAGES,
    bytes_until_closed,
    framed,
    idle_connections,
    replies,
    send_and_close,
)
from tests.workers.small_server import echo

ANY_INTERFACE = "0.0.0.0"
"""An address that is not on loopback, on every machine: its server uses TLS."""


@dataclass(frozen=True)
class Served:
    """A server, and a client that knows its token."""

    server: SocketServer
    use: Callable[[], None]
    """Connects, and fails unless it gets the right reply."""

    @property
    def address(self) -> Address:
        return self.server.address


def use_echo(address: Address) -> None:
    """Send messages over a connection, which is tried again as by all clients: the queue of new ones may be full."""
    opened: list[SocketConnection] = []

    def is_connected() -> bool:
        opened.extend(filter(None, [connect(replace(address, host="127.0.0.1"), never_stop)]))
        return bool(opened)

    assert wait_until(is_connected, "the server", timeout_seconds=600, interval_seconds=0.01)
    (connection,) = opened
    with closing(connection):
        for message in ("hello", {"long": "x" * 300_000}):
            connection.send(message, timeout_seconds=600)
            assert connection.receive(timeout_seconds=600) == message


@contextmanager
def serving(kind: str, folder: Path) -> Iterator[Served]:
    match kind:
        case "echo" | "echo-tls":
            host = "127.0.0.1" if kind == "echo" else ANY_INTERFACE
            with closing(SocketServer(host, echo, "strop-echo")) as server:
                yield Served(server, lambda: use_echo(server.address))
        case "buffer":

            def use_buffer() -> None:
                role = BufferClientRole("driver", reads=True, writes=True)
                with closing(RemoteStore(folder / BUFFER_ADDRESS_FILE, role, never_stop)) as store:
                    assert store.counts() == BufferCounts(0, 0, 0)

            with serve_buffer(QueueBufferConfig(), folder, "127.0.0.1") as server:
                yield Served(server, use_buffer)
        case "sync":
            cpu = torch.device("cpu")
            sender = CollectiveSender(folder, CollectiveSyncConfig(), "127.0.0.1", cpu, None)
            sender.announce_start()
            assert (folder / TRAINER_ADDRESS_FILE).stat().st_mode & 0o777 == 0o600

            def use_sync() -> None:
                with closing(CollectiveReceiver(folder, "127.0.0.1", cpu, never_stop)) as receiver:
                    receiver.set_signal(REQUESTED, 7)
                assert sender.get_signal(REQUESTED) == 7

            with closing(sender):
                yield Served(sender._socket_server, use_sync)


@pytest.fixture(params=["echo", "echo-tls", "buffer", "sync"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with serving(request.param, tmp_path) as served:
        yield served


def test_strangers_get_no_reply_and_cause_no_fault(served: Served) -> None:
    for content in MESSAGES.values():
        for message in (content, framed(content)):
            send_and_close(served.address, message, reset=False)
            send_and_close(served.address, message, reset=True)
            reply = replies(served.address, message)
            assert reply == b"" or (served.address.certificate and reply[:1] == b"\x15"), (
                "at most a TLS alert"
            )
    served.use()
    served.server.raise_errors()


def test_little_is_read_before_authentication(served: Served) -> None:
    """The rest of what was sent stays in the buffers of the operating system."""
    chunk = b"\x0f\xff\xff\xff" + bytes((1 << 20) - 4)
    assert bytes_until_closed(served.address, chunk, 256) < 64 << 20
    served.use()
    served.server.raise_errors()


def test_the_handshake_has_one_deadline(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.5)
    first = b"\x16" if served.address.certificate else b"\0"  # of a TLS record
    assert bytes_until_closed(served.address, first, 6000, pause_seconds=0.1) < 6000
    monkeypatch.undo()
    served.use()
    served.server.raise_errors()


def test_strangers_cannot_keep_clients_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 600.0)  # strangers give way to others only
    threads, files = threading.active_count(), open_files()
    with idle_connections(served.address, 3 * MAX_UNAUTHENTICATED):
        served.use()
        assert threading.active_count() <= threads + MAX_UNAUTHENTICATED + 3
        assert served.server.open_connections <= 1, "strangers do not count as clients"
    assert wait_until(
        lambda: threading.active_count() <= threads, "the threads", timeout_seconds=600, interval_seconds=0.05
    )
    assert open_files() <= files + 1  # what the operating system opened for the first connection
    served.use()
    served.server.raise_errors()


def open_files() -> int:
    """Number of open files of this process; 0 where it is not known."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


@pytest.mark.parametrize("host", ["127.0.0.1", ANY_INTERFACE])
def test_a_server_without_free_files_recovers(tmp_path: Path, host: str) -> None:
    path = tmp_path / "address.json"
    command = [sys.executable, "-m", "tests.workers.small_server", str(path), "10", host]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert wait_until(path.exists, "the server", timeout_seconds=600, interval_seconds=0.05)
        address = Address.load(path)
        assert address is not None
        with idle_connections(address, 60):
            use_echo(address)
        use_echo(address)
        output, errors = process.communicate()
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output.strip()) == (0, b"1"), errors.decode()
    assert errors.decode().count("strop-echo cannot accept a connection: ") == 1


@contextmanager
def impostor(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A process that listens at the port of a server that was killed; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            opened, _ = listening.accept()
            with opened, contextlib.suppress(OSError):
                answer(opened)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listening.getsockname()[1]
        thread.join()


def test_a_client_rejects_a_server_that_does_not_know_the_token() -> None:
    token, received = os.urandom(16).hex(), []

    def answer(opened: socket.socket) -> None:
        received.append(opened.recv(100))
        opened.sendall(bytes(32))

    with impostor(answer) as port:
        assert connect(Address("127.0.0.1", port, token), never_stop) is None
    assert len(received[0]) == 64 and token.encode() not in received[0]


def test_a_client_rejects_another_certificate(tmp_path: Path) -> None:
    with serving("echo-tls", tmp_path) as one, serving("echo-tls", tmp_path) as other:
        pinned = replace(one.address, host="127.0.0.1", certificate=other.address.certificate)
        assert connect(pinned, never_stop) is None
        assert connect(replace(pinned, certificate=None), never_stop) is None, "TLS is required"
        one.use()
        one.server.raise_errors()


def test_nothing_can_be_read_from_the_wire_under_tls(tmp_path: Path) -> None:
    with serving("echo-tls", tmp_path) as served:
        wire: list[bytes] = []

        def forward(opened: socket.socket) -> None:
            with socket.create_connection(("127.0.0.1", served.address.port)) as real:
                opened.settimeout(0.05)
                real.settimeout(0.05)
                while wire[-1:] != [b""]:  # the end of a connection
                    for source, target in ((opened, real), (real, opened)):
                        with contextlib.suppress(TimeoutError):
                            wire.append(source.recv(1 << 16))
                            target.sendall(wire[-1])

        with impostor(forward) as port:
            connection = connect(replace(served.address, host="127.0.0.1", port=port), never_stop)
            assert connection is not None
            connection.send("a secret message", timeout_seconds=600)
            assert connection.receive(timeout_seconds=600) == "a secret message"
            connection.close()
        assert b"secret message" not in b"".join(wire)


def test_a_recorded_handshake_is_no_use_at_a_restarted_server() -> None:
    """A server that was restarted has another token."""
    sent: list[bytes] = []
    with impostor(lambda opened: sent.append(opened.recv(100))) as port:
        assert connect(Address("127.0.0.1", port, "token of the first"), never_stop) is None
    ours, peer = socket.socketpair()
    with ours, peer:
        peer.sendall(sent[0])
        with pytest.raises(ConnectionLost):
            authenticate_client(SocketConnection(ours, never_stop), "token of the second")
