"""Messages between two processes over a TCP socket: address, authentication, TLS; JSON or bytes after their length.

A listening process writes its `Address` to a file; other processes read the file and `connect`. Before the first
message, each end proves that it knows the server's token, which is never sent:

    client -> server   nonce (32 bytes) + HMAC-SHA256(token, "client" + nonce)
    server -> client   HMAC-SHA256(token, "server" + nonce)

Until a client is authenticated, the server reads these 64 bytes only, parses nothing, and sends nothing. The whole
exchange, with the TLS handshake if there is one, has one deadline. Each server has its own self-signed certificate,
which is part of its address file; clients pin it. The private key never leaves the server's process, except for a
temporary file while OpenSSL reads it.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import ssl
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from strop.errors import MissingExtraError
from strop.workers.files import atomic_write
from strop.workers.json_text import parse_json
from strop.workers.waiting import StopCheck

POLL_SECONDS = 0.2
"""Longest wait without a stop check."""
PEER_TIMEOUT_SECONDS = 60.0
"""Peer timeout for one send or receive; a peer that exceeds it counts as lost."""
_LENGTH = struct.Struct("!I")
_MAX_MESSAGE_BYTES = 1 << 28


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
            connection.settimeout(POLL_SECONDS)
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


HANDSHAKE_SECONDS = 10.0
"""Timeout of the whole handshake."""
_NONCE_BYTES = 32
_PROOF_BYTES = 32


def authenticate_server(connection: SocketConnection, token: str) -> None:
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


_VALIDITY = timedelta(days=3650)
_CLOCK_SKEW = timedelta(days=1)


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


def client_context(certificate: str) -> ssl.SSLContext:
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
