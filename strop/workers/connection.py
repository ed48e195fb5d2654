"""Messages between two processes over a TCP socket: address, authentication, TLS; JSON or bytes after their length.

A listening process writes its `Address` to a file; other processes read the file and `connect`. Before the first
message, each end proves that it knows the server's token, which is never sent:

    client -> server   nonce (32 bytes) + HMAC-SHA256(token, "client" + nonce)
    server -> client   HMAC-SHA256(token, "server" + nonce)

Until a client is authenticated, the server reads these 64 bytes only, parses nothing, and sends nothing. The whole
exchange, with the TLS handshake if there is one, has one deadline. Each server has its own self-signed certificate,
which is part of its address file; clients pin it. The private key never leaves the server's process, except for a
temporary file while OpenSSL reads it.

A server has one thread per connection. A client that is killed in the middle of a message therefore does not block
the other clients. A peer that does not know the token costs a thread and a socket until `HANDSHAKE_SECONDS` have
passed, or until `MAX_UNAUTHENTICATED` others have connected after it; it cannot end the server or cause an error in
its owner.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import ipaddress
import json
import logging
import secrets
import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from strop.errors import MissingExtraError
from strop.workers.files import atomic_write
from strop.workers.json_text import parse_json
from strop.workers.waiting import StopCheck

_POLL_SECONDS = 0.2
"""Longest wait without a stop check."""
PEER_TIMEOUT_SECONDS = 60.0
"""Peer timeout for one send or receive; a peer that exceeds it counts as lost."""
_LENGTH = struct.Struct("!I")
_MAX_MESSAGE_BYTES = 1 << 28
HANDSHAKE_SECONDS = 10.0
"""Timeout of the whole handshake."""
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_VALIDITY = timedelta(days=3650)
_CLOCK_SKEW = timedelta(days=1)
log = logging.getLogger("strop.workers")
MAX_UNAUTHENTICATED = 64
"""Maximum number of connections that are not authenticated yet; one more closes the oldest."""
_WARNING_SECONDS = 60.0
"""Shortest time between two warnings about connections that cannot be accepted."""
_PEER_ERRNOS = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR})
"""Errors of `accept` that concern only the one connection."""


class ConnectionLost(Exception):
    """The peer has closed the connection, exceeded the timeout, or sent something that is not a message."""


class Disconnected(ConnectionLost):
    """This process closes the connection: raised by a stop check."""


class SocketConnection:
    """One end of a connection. `check` is called while it waits, and may raise."""

    def __init__(self, connection: socket.socket, check: StopCheck) -> None:
        """Raises `ConnectionLost` if the peer is gone already."""
        self._socket = connection
        with self._lost_on_error():
            connection.settimeout(_POLL_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.check = check

    def send(self, message: Any, *, timeout_seconds: float) -> None:
        """Send a message as JSON. Raises `ConnectionLost` if the peer does not receive it in time."""
        self.send_bytes(json.dumps(message).encode(), timeout_seconds=timeout_seconds)

    def send_bytes(self, content: bytes, *, timeout_seconds: float) -> None:
        """Send bytes. Raises `ConnectionLost` if the peer does not receive them in time."""
        self.write(_LENGTH.pack(len(content)) + content, time.monotonic() + timeout_seconds)

    def receive(self, *, timeout_seconds: float | None = None) -> Any:
        """The next JSON message. Raises `ConnectionLost` if none arrives in time; None sets no limit."""
        try:
            return parse_json(self.receive_bytes(timeout_seconds=timeout_seconds))
        except ValueError as error:
            raise ConnectionLost from error

    def receive_bytes(self, *, timeout_seconds: float | None = None) -> bytes:
        """The next message as bytes. Raises `ConnectionLost` if none arrives in time; None sets no limit."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        (length,) = _LENGTH.unpack(self.read(_LENGTH.size, deadline))
        if length > _MAX_MESSAGE_BYTES:
            raise ConnectionLost
        return self.read(length, deadline)

    @property
    def local_host(self) -> str:
        """Address of this machine from which the peer is reached."""
        return str(self._socket.getsockname()[0])

    @property
    def peer_host(self) -> str:
        """Address of the peer."""
        return str(self._socket.getpeername()[0])

    def close(self) -> None:
        """Close the connection; the peer gets `ConnectionLost`."""
        self._socket.close()

    def write(self, content: bytes, deadline: float) -> None:
        """Send bytes without a length. Raises `ConnectionLost` if they are not sent at the deadline, a time of
        `time.monotonic`."""
        unsent = memoryview(content)
        while True:
            self.check()
            with self._lost_on_error():
                unsent = unsent[self._socket.send(unsent) :]
            if not unsent:
                return
            _require_time(deadline)

    def read(self, count: int, deadline: float | None) -> bytes:
        """Receive exactly `count` bytes. Raises `ConnectionLost` if they are not there at the deadline."""
        received = bytearray()
        while len(received) < count:
            self.check()
            with self._lost_on_error():
                chunk = self._socket.recv(count - len(received))
                if not chunk:
                    raise ConnectionLost
                received += chunk
            if len(received) < count:
                _require_time(deadline)
        return bytes(received)

    @contextlib.contextmanager
    def _lost_on_error(self) -> Iterator[None]:
        """Raises `ConnectionLost` for a socket error that is not the end of a poll."""
        try:
            yield
        except TimeoutError:
            return
        except OSError as error:
            raise ConnectionLost from error


def _require_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise ConnectionLost


def _authenticate_server(connection: SocketConnection, token: str) -> None:
    """The client's part. Raises `ConnectionLost` if the peer does not know the token, or exceeds the timeout."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    nonce = secrets.token_bytes(_NONCE_BYTES)
    connection.write(nonce + _proof(token, b"client", nonce), deadline)
    if not hmac.compare_digest(connection.read(_PROOF_BYTES, deadline), _proof(token, b"server", nonce)):
        raise ConnectionLost


def authenticate_client(connection: SocketConnection, token: str) -> None:
    """The server's part. Raises `ConnectionLost` if the peer does not know the token, or exceeds the timeout."""
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    opening = connection.read(_NONCE_BYTES + _PROOF_BYTES, deadline)
    nonce, proof = opening[:_NONCE_BYTES], opening[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"client", nonce)):
        raise ConnectionLost
    connection.write(_proof(token, b"server", nonce), deadline)


def _proof(token: str, sender: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), sender + nonce, "sha256")


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server's certificate, and the TLS context that proves it."""

    certificate: str
    """PEM text."""
    context: ssl.SSLContext

    @classmethod
    def create(cls) -> ServerIdentity:
        """A new key and certificate. Raises `MissingExtraError` without the package `cryptography`."""
        certificate, key = _self_signed_certificate()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        with tempfile.TemporaryDirectory(prefix="strop-tls-") as folder:  # readable by this user only
            path = Path(folder) / "server.pem"
            path.write_bytes(key + certificate)
            context.load_cert_chain(path)
        return cls(certificate.decode(), context)


def _client_context(certificate: str) -> ssl.SSLContext:
    """A TLS context that accepts the server with this certificate, at any address, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


def _self_signed_certificate() -> tuple[bytes, bytes]:
    """A certificate and its private key, both in PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingExtraError(
            "On a Ray cluster of several nodes the run's processes communicate by TLS, which needs the "
            "package cryptography. Install it on every node: pip install 'strop[ray]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "strop")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


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
            return cls(**parse_json(path.read_text()))
        except FileNotFoundError:
            return None


def connect(address: Address | None, check: StopCheck) -> SocketConnection | None:
    """A connection to the process that listens at an address; None if no process that knows the token does."""
    if address is None:
        return None
    try:
        opened = socket.create_connection((address.host, address.port), timeout=_POLL_SECONDS)
    except OSError:
        return None
    try:
        if address.certificate is not None:
            context = _client_context(address.certificate)
            opened = context.wrap_socket(opened, do_handshake_on_connect=False)  # the first write does it
        connection = SocketConnection(opened, check)
        _authenticate_server(connection, address.token)
    except (ConnectionLost, OSError):
        opened.close()
        return None
    except BaseException:
        opened.close()
        raise
    return connection


_ConnectionHandler = Callable[[SocketConnection], None]


class SocketServer:
    """Listens until it is closed, and serves every client that knows the token; by TLS, except on loopback."""

    def __init__(self, host: str, serve: _ConnectionHandler, name: str) -> None:
        """`host` is an address of this machine; `serve` handles one connection, until it is lost; `name` is
        the threads' name. Raises `MissingExtraError` without the package that TLS needs."""
        self._name = name
        self._handler = serve
        self._error: Exception | None = None
        self._next_warning = 0.0
        self._closing = threading.Event()
        self._changed = threading.Condition()
        """Guards the two collections of connections, and is notified when one ends."""
        self._unauthenticated: dict[threading.Thread, socket.socket] = {}
        """Connections before the end of their handshake, oldest first."""
        self._clients: set[threading.Thread] = set()
        identity = None if ipaddress.ip_address(host).is_loopback else ServerIdentity.create()
        self._tls = None if identity is None else identity.context
        self._listening = socket.create_server((host, 0))
        self._listening.settimeout(_POLL_SECONDS)
        self.address = Address(
            host,
            self._listening.getsockname()[1],
            secrets.token_hex(16),
            None if identity is None else identity.certificate,
        )
        self._accepting = threading.Thread(target=self._accept_loop, name=name, daemon=True)
        self._accepting.start()

    @property
    def open_connections(self) -> int:
        """Number of open connections of authenticated clients."""
        return len(self._clients)

    def raise_errors(self) -> None:
        """Raise the last exception of a connection's thread, if there was one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop listening, and close all connections at their next stop check."""
        self._closing.set()
        self._accepting.join()
        with self._changed:
            threads = [*self._unauthenticated, *self._clients]
        for thread in threads:
            thread.join()
        self._listening.close()

    def _accept_loop(self) -> None:
        while not self._closing.is_set():
            try:
                opened, _ = self._listening.accept()
                self._start(opened)
            except TimeoutError:
                continue
            except OSError as error:
                if error.errno not in _PEER_ERRNOS:
                    self._wait_for_resources(error)

    def _start(self, opened: socket.socket) -> None:
        """Handle a connection in a thread of its own."""
        if self._tls is not None:
            try:
                opened = self._tls.wrap_socket(opened, server_side=True, do_handshake_on_connect=False)
            except OSError:  # the peer is gone already
                opened.close()
                return
        thread = threading.Thread(target=self._run, args=(opened,), name=self._name, daemon=True)
        with self._changed:
            while len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
                self._close_oldest()
            self._unauthenticated[thread] = opened
        try:
            thread.start()
        except RuntimeError as error:  # the system allows no more threads
            self._remove(thread, opened)
            raise OSError(errno.ENOMEM, str(error)) from error

    def _run(self, opened: socket.socket) -> None:
        thread = threading.current_thread()
        try:
            connection = SocketConnection(opened, self._check)
            authenticate_client(connection, self.address.token)
            with self._changed:
                del self._unauthenticated[thread]
                self._clients.add(thread)
            self._handler(connection)
        except ConnectionLost:
            return
        except Exception as error:  # noqa: BLE001  (`raise_errors` raises it in the owner's thread)
            self._error = error
        finally:
            self._remove(thread, opened)

    def _remove(self, thread: threading.Thread, opened: socket.socket) -> None:
        with self._changed:
            self._unauthenticated.pop(thread, None)
            self._clients.discard(thread)
            opened.close()
            self._changed.notify_all()

    def _close_oldest(self) -> None:
        """Close the oldest unauthenticated connection, and wait until a connection has ended. Needs the lock."""
        oldest = next(iter(self._unauthenticated.values()), None)
        if oldest is not None:
            with contextlib.suppress(OSError):  # the peer may have closed it
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)  # wakes its thread, also under TLS
        self._changed.wait(_POLL_SECONDS)

    def _wait_for_resources(self, error: OSError) -> None:
        """After an error such as EMFILE: close the oldest unauthenticated connection, and wait for a moment."""
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + _WARNING_SECONDS
            log.warning(
                "%s cannot accept a connection: %s. It tries again until it can; `ulimit -n` shows the limit "
                "of open files.",
                self._name,
                error.strerror,
            )
        with self._changed:
            self._close_oldest()

    def _check(self) -> None:
        if self._closing.is_set():
            raise Disconnected
